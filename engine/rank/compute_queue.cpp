#include "engine/rank/compute_queue.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "engine/device/compute_thread.hpp"
#include "engine/device/core_plan.hpp"
#include "engine/metrics/flops.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kLosses = 1024;                      // read back at a time
constexpr std::size_t kBatchBytes = std::size_t{4} << 20;  // of a micro-batch on its way to a GPU

/// LibTorch's message runs over a page; the sizes are in its first sentences.
std::string first_sentences(std::string_view text) {
  text = text.substr(0, text.find(" If reserved but unallocated"));
  return std::string(text.substr(0, text.find_last_not_of(". \n") + 1));
}

}  // namespace

ComputeQueue::ComputeQueue(Scope& scope, const Model& model, Accelerator* accelerator,
                           bool recomputes)
    : scope_(scope),
      model_(model),
      accelerator_(accelerator),
      recomputes_(recomputes),
      lane_(scope.loop(), "compute") {
  if (!on_gpu()) {
    host_losses_.resize(kLosses);
    losses_ = host_losses_;
    return;
  }
  losses_ = {reinterpret_cast<float*>(accelerator_->pinned(kLosses * sizeof(float))), kLosses};
  for (BatchStage& stage : batch_stages_) {
    stage.memory = {accelerator_->pinned(kBatchBytes), kBatchBytes};
  }
}

Task<> ComputeQueue::prepare(std::vector<int> cores, int threads) {
  lane_.set_team(threads);
  const auto prepare_lane = [this, &cores, threads] {
    if (!cores.empty()) {
      bind_thread(cores);  // the team that ATen makes later inherits it
    }
    prepare_compute_thread(threads);
    if (on_gpu()) {
      accelerator_->compute()->prepare_thread();
    }
  };
  co_await lane_.run(prepare_lane, "prepare the lane");
}

at::Device ComputeQueue::tensors() const noexcept {
  return on_gpu() ? accelerator_->compute()->tensors() : at::Device(at::kCPU);
}

Task<> ComputeQueue::run(Name what, std::function<void()> work) {
  if (!on_gpu()) {
    co_await lane_.run(std::move(work), what);
    co_return;
  }
  const auto queue = [gpu = accelerator_->compute(), what, &work] {
    try {
      gpu->queue(std::move(work));
    } catch (const c10::OutOfMemoryError& full) {
      throw failure(ExitCode::kRefused, "device",
                    "out of device memory in {}: {}; use activation_checkpointing, a smaller "
                    "micro-batch, shorter rows or stage 3",
                    what.c_str(), first_sentences(full.what_without_backtrace()));
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

Task<Batch> ComputeQueue::upload(Batch batch) {
  if (!on_gpu()) {
    co_return batch;
  }
  BatchStage& stage = batch_stages_[next_stage_++ % batch_stages_.size()];
  if (stage.left) {
    co_await stage.left->wait();
  }
  const auto copy = [this, &batch, &stage] {
    std::span<std::byte> room = stage.memory;
    const auto there_of = [&](const at::Tensor& tensor) {
      at::Tensor there = accelerator_->upload(tensor, room);
      const std::size_t taken =
          tensor.defined() && tensor.is_cpu() ? (tensor.nbytes() + 63) / 64 * 64 : 0;
      room = room.subspan(std::min(taken, room.size()));
      return there;
    };
    Batch there = batch;
    there.inputs = there_of(batch.inputs);
    there.labels = there_of(batch.labels);
    there.positions = there_of(batch.positions);
    there.lengths = there_of(batch.lengths);
    return there;
  };
  Batch there = co_await lane_.run(copy, "upload batch");
  stage.left = accelerator_->queued();
  co_return there;
}

void ComputeQueue::read_back(const at::Tensor& scalar, float* to) const {
  if (on_gpu()) {
    at::from_blob(to, {}, at::TensorOptions().dtype(at::kFloat))
        .copy_(scalar.detach(), /*non_blocking=*/true);
  } else {
    *to = scalar.item<float>();
  }
}

Task<at::Tensor> ComputeQueue::to_host(at::Tensor tensor) {
  const auto fetch = [&tensor] { return tensor.to(at::kCPU); };
  co_return co_await lane_.run(fetch, "read back");
}

SegmentTime ComputeQueue::time_of(std::size_t segment, Phase phase, const Batch& batch,
                                  TimePoint inputs_there) {
  if (accelerator_ == nullptr || on_gpu()) {
    return {};
  }
  const SegmentSpec& spec = model_.segments[segment];
  const bool is_backward = phase == Phase::kBackward;
  if (spec.cost.seconds) {
    return {spec.cost.seconds(is_backward), inputs_there, device_time_};
  }
  const SegmentShape shape = segment_shape(model_, segment);
  const std::int64_t rows = batch.inputs.size(0);
  const std::int64_t length = batch.inputs.is_floating_point() ? 1 : batch.inputs.size(1);
  // The last segment's graph is kept: nothing of it is computed twice.
  const bool recomputes = recomputes_ && segment + 1 < model_.segments.size();
  const double of_rows = is_backward ? backward_flops(shape, rows, length, recomputes)
                                     : forward_flops(shape, rows, length);
  const double share = batch.part.count > 0
                           ? static_cast<double>(batch.part.count) / static_cast<double>(length)
                           : 1.0;
  return {accelerator_->seconds_of(of_rows * share), inputs_there, device_time_};
}

double ComputeQueue::busy_s() const noexcept {
  const auto busy_ns = static_cast<double>(device_time_.busy_ns.load(std::memory_order_relaxed));
  return accelerator_ != nullptr ? busy_ns * 1e-9 : lane_.busy_s();
}

}  // namespace tandem
