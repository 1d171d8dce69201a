#include "engine/rank/compute_queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/device/core_plan.hpp"
#include "engine/metrics/flops.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kLosses = 1024;  // read back at a time

}  // namespace

ComputeQueue::ComputeQueue(Scope& scope, const Model& model, Accelerator* accelerator,
                           bool recomputes, LaneDriver* driver)
    : scope_(scope),
      model_(model),
      accelerator_(accelerator),
      recomputes_(recomputes),
      lane_(scope.loop(), "compute", driver) {
  if (!on_gpu()) {
    host_losses_.resize(kLosses);
    losses_ = host_losses_;
    return;
  }
  losses_ = {reinterpret_cast<float*>(accelerator_->pinned(kLosses * sizeof(float))), kLosses};
}

Task<> ComputeQueue::prepare(std::vector<int> cores, int threads,
                             std::function<void(int threads)> prepare_thread) {
  lane_.set_team(threads);
  const auto prepare_lane = [this, &cores, &prepare_thread, threads] {
    if (!cores.empty()) {
      bind_thread(cores);  // the team that a library makes later inherits it
    }
    if (prepare_thread) {
      prepare_thread(threads);
    }
    if (on_gpu()) {
      accelerator_->compute()->prepare_thread();
    }
  };
  co_await lane_.run(prepare_lane, "prepare the lane");
}

Task<> ComputeQueue::run(Name what, std::function<void()> work) {
  if (!on_gpu()) {
    co_await lane_.run(std::move(work), what);
    co_return;
  }
  const auto queue = [gpu = accelerator_->compute(), what, &work] {
    try {
      gpu->queue(std::move(work));
    } catch (const DeviceOutOfMemory& full) {
      throw failure(ExitCode::kRefused, "device",
                    "out of device memory in {}: {}; use activation_checkpointing, a smaller "
                    "micro-batch, shorter rows or stage 3",
                    what.c_str(), full.what());
    }
  };
  co_await lane_.run(queue, what);
}

double VisitTimes::all(Phase phase) const {
  double sum = 0;
  for (std::size_t segment = 0; segment < seconds_.size() / 2; ++segment) {
    sum += of(segment, phase);
  }
  return sum;
}

std::optional<DeviceEvent> ComputeQueue::in_use(std::span<std::byte* const> blocks,
                                                const std::shared_ptr<double>& seconds) {
  if (!on_gpu()) {
    return std::nullopt;
  }
  DeviceEvent event = accelerator_->queued();
  accelerator_->in_use(blocks, event);
  scope_.spawn("compute", &ComputeQueue::account, this, event, scope_.loop().now(), seconds);
  return event;
}

/// The loop counts the device as busy from when the work was queued, or from the end of the work
/// before it, until it hears of the work's end.
Task<> ComputeQueue::account(ComputeQueue* self, DeviceEvent event, TimePoint queued,
                             std::shared_ptr<double> seconds) {
  try {
    co_await event.wait();
  } catch (const DeviceError&) {
    co_return;  // the step that awaits the same event reports it
  }
  const TimePoint now = self->scope_.loop().now();
  const TimePoint began = std::max(queued, self->device_time_.free_since);
  self->device_time_.free_since = now;
  const Duration worked = now - std::min(began, now);
  self->device_time_.busy_ns.fetch_add(worked.count(), std::memory_order_relaxed);
  if (seconds != nullptr) {
    *seconds += std::chrono::duration<double>(worked).count();
  }
}

SegmentTime ComputeQueue::time_of(std::size_t segment, Phase phase, const BatchExtents& batch,
                                  TimePoint inputs_there) {
  if (accelerator_ == nullptr || !accelerator_->takes_real_time()) {
    return {};
  }
  const SegmentSpec& spec = model_.segments[segment];
  const bool is_backward = phase == Phase::kBackward;
  if (spec.cost.seconds) {
    return {spec.cost.seconds(is_backward), inputs_there, device_time_};
  }
  const SegmentShape shape = segment_shape(model_, segment);
  // The last segment's graph is kept: nothing of it is computed twice.
  const bool recomputes = recomputes_ && segment + 1 < model_.segments.size();
  const double of_rows =
      is_backward ? backward_flops(shape, batch.rows, batch.length, recomputes, CountedKeys::kSeen)
                  : forward_flops(shape, batch.rows, batch.length, CountedKeys::kSeen);
  return {accelerator_->seconds_of(of_rows * batch.share), inputs_there, device_time_};
}

double ComputeQueue::busy_s() const noexcept {
  const auto busy_ns = static_cast<double>(device_time_.busy_ns.load(std::memory_order_relaxed));
  return accelerator_ != nullptr ? busy_ns * 1e-9 : lane_.busy_s();
}

}  // namespace tandem
