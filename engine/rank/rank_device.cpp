// engine/rank/rank_device.cpp — what a rank does only where there is a device; see rank.hpp.
#include <algorithm>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "engine/metrics/flops.hpp"
#include "engine/rank/rank.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

// Of updates without a copy: short beside a unit, long beside a kernel's latency.
constexpr std::size_t kResidentSliceChunks = 16;
constexpr std::size_t kLosses = 1024;                      // read back at a time
constexpr std::size_t kBatchBytes = std::size_t{4} << 20;  // of a micro-batch on its way to a GPU

/// LibTorch's words for it run over a page; the sizes are in their first sentences.
std::string first_sentences(std::string_view text) {
  text = text.substr(0, text.find(" If reserved but unallocated"));
  return std::string(text.substr(0, text.find_last_not_of(". \n") + 1));
}

}  // namespace

void Rank::open_device(const Communicator& communicator) {
  if (options_.device == DeviceKind::kSim) {
    accelerator_.emplace(loop_, communicator.rank(), options_.sim);
  } else if (options_.device == DeviceKind::kCuda) {
    const OpenGpu open = options_.open_gpu ? options_.open_gpu : OpenGpu(&open_gpu);
    accelerator_.emplace(loop_, open(communicator.local_rank()));
  }
}

void Rank::connect(Communicator& communicator) {
  host_losses_.resize(kLosses);
  losses_ = host_losses_;
  if (!accelerator_) {
    backend_ = communicator.make_backend(loop_, copy_pool_);
    connect_expert_group(communicator, {});
    return;
  }
  backend_ = accelerator_->connect(communicator, loop_, copy_pool_);
  connect_expert_group(communicator, [this](std::unique_ptr<CollectiveBackend> part) {
    return accelerator_->connect_group(std::move(part));
  });
  if (on_gpu()) {
    losses_ = {reinterpret_cast<float*>(accelerator_->pinned(kLosses * sizeof(float))), kLosses};
    for (BatchStage& stage : batch_stages_) {
      stage.memory = {accelerator_->pinned(kBatchBytes), kBatchBytes};
    }
  }
  std::size_t largest = 0;  // slice that is gathered to be saved
  for (const UnitSpec& unit : model_.units) {
    const std::size_t slice = sharding_.layout_of(unit).shard_elements;
    largest = std::max(largest, sharding_.is_sharded(unit) ? slice : 0);
  }
  if (largest > 0 && dynamic_cast<StagedBackend*>(backend_.get()) == nullptr) {
    const auto floats = [&](std::size_t count) {
      return std::span(reinterpret_cast<float*>(backend_->allocate(count * sizeof(float))), count);
    };
    slice_buffer_ = floats(largest);
    whole_buffer_ = floats(largest * sharding_.world);
  }
  if (std::ranges::any_of(sizes_.units, [](const UnitSizes& unit) {
        return unit.placement != StatePlacement::kHost;
      })) {
    accelerator_->reduce_there();
    copies_.emplace(accelerator_->device(),
                    on_gpu() ? std::span(accelerator_->pinned(DeviceCopies::kStageBytes),
                                         DeviceCopies::kStageBytes)
                             : std::span<std::byte>());
  }
  resident_bytes_.staging = accelerator_->staging_bytes();
}

void Rank::connect_expert_group(Communicator& communicator,
                                const ExpertParallelGroup::Stage& stage) {
  const std::int64_t ep_size = require_ep_size(model_, communicator.world_size());
  if (ep_size > 1) {
    expert_group_.emplace(communicator, loop_, copy_pool_, ep_size, stage);
  }
}

Task<> Rank::compute(std::string_view what, std::function<void()> work) {
  ComputeDevice* const gpu = accelerator_ ? accelerator_->compute() : nullptr;
  if (gpu == nullptr) {
    co_await lane_.run(std::move(work));
    co_return;
  }
  const auto give = [gpu, what, &work] {
    try {
      gpu->queue(std::move(work));
    } catch (const c10::OutOfMemoryError& full) {
      throw failure(ExitCode::kRefused, "device",
                    "out of device memory in {}: {}; use activation_checkpointing, a smaller "
                    "micro-batch, shorter rows or stage 3",
                    what, first_sentences(full.what_without_backtrace()));
    }
  };
  co_await lane_.run(give);
}

std::optional<DeviceEvent> Rank::in_use(std::span<std::byte* const> blocks) {
  if (!on_gpu()) {
    return std::nullopt;
  }
  DeviceEvent event = accelerator_->queued();
  accelerator_->in_use(blocks, event);
  scope_.spawn("compute", &Rank::account, this, event, loop_.now());
  return event;
}

/// As far as the loop sees it: the device works on from when it was given something, or was through
/// with the last.
Task<> Rank::account(Rank* self, DeviceEvent event, TimePoint queued) {
  try {
    co_await event.wait();
  } catch (const DeviceError&) {
    co_return;  // who needs what was computed gets it
  }
  const TimePoint now = self->loop_.now();
  const TimePoint began = std::max(queued, self->device_time_.free_since);
  self->device_time_.free_since = now;
  self->device_time_.busy_ns.fetch_add((now - std::min(began, now)).count(),
                                       std::memory_order_relaxed);
}

at::Device Rank::tensors() const noexcept {
  const ComputeDevice* const gpu = accelerator_ ? accelerator_->compute() : nullptr;
  return gpu != nullptr ? gpu->tensors() : at::Device(at::kCPU);
}

Task<Batch> Rank::on_device(Batch batch) {
  if (!on_gpu()) {
    co_return batch;
  }
  BatchStage& stage = batch_stages_[next_stage_++ % batch_stages_.size()];
  if (stage.left) {
    co_await stage.left->wait();
  }
  const auto upload = [this, &batch, &stage] {
    const std::size_t labels_at =
        batch.inputs.is_cpu() ? (batch.inputs.nbytes() + 63) / 64 * 64 : 0;
    Batch there = batch;
    there.inputs = accelerator_->upload(batch.inputs, stage.memory);
    there.labels = accelerator_->upload(
        batch.labels, stage.memory.subspan(std::min(labels_at, stage.memory.size())));
    return there;
  };
  Batch there = co_await lane_.run(upload);
  stage.left = accelerator_->queued();
  co_return there;
}

void Rank::read_back(const at::Tensor& scalar, float* to) const {
  if (on_gpu()) {
    at::from_blob(to, {}, at::TensorOptions().dtype(at::kFloat))
        .copy_(scalar.detach(), /*non_blocking=*/true);
  } else {
    *to = scalar.item<float>();
  }
}

Task<at::Tensor> Rank::to_host(at::Tensor tensor) {
  const auto fetch = [&tensor] { return tensor.to(at::kCPU); };
  co_return co_await lane_.run(fetch);
}

std::byte* Rank::allocate_on_device(std::size_t bytes, std::string_view purpose) {
  std::byte* memory = accelerator_->allocate(bytes, purpose);
  resident_bytes_.device = accelerator_->used_bytes();
  return memory;
}

std::byte* Rank::slots_on_device(const SlotPools& pools, std::size_t pool, Name name,
                                 std::size_t bytes) {
  std::string_view largest;
  for (std::size_t unit = 0; unit < layouts_.size(); ++unit) {
    if (pools.pool_of[unit] == pool &&
        layouts_[unit].block.padded_elements == pools.slot_elements[pool]) {
      largest = model_.units[unit].name;
    }
  }
  return allocate_on_device(bytes,
                            fmt::format("{}, each as large as unit \"{}\"", name.c_str(), largest));
}

UpdateRunner* Rank::runner_of(StatePlacement placement) {
  if (placement == StatePlacement::kHost) {
    return nullptr;
  }
  const bool streams = placement == StatePlacement::kStreamed;
  std::unique_ptr<DeviceUpdates>& runner = streams ? streamed_updates_ : resident_updates_;
  if (runner != nullptr) {
    return runner.get();
  }
  const std::size_t stage_bytes = streams ? sizes_.stream_stage_bytes : sizes_.resident_stage_bytes;
  const std::size_t chunk = CpuOptimizer::Options().chunk_elements;
  runner = std::make_unique<DeviceUpdates>(DeviceUpdates::Options{
      .device = &accelerator_->device(),
      .kernels = accelerator_->update_kernels(),
      .is_on_device = [this](const void* memory) { return accelerator_->holds(memory); },
      .slice_chunks = stage_bytes > 0 ? kStreamedSliceElements / chunk : kResidentSliceChunks,
      .stages = stage_bytes > 0 ? allocate_on_device(DeviceUpdates::kSlices * stage_bytes,
                                                     "the stages of updates")
                                : nullptr,
      .stage_bytes = stage_bytes});
  return runner.get();
}

std::byte* Rank::allocate_state(std::size_t unit) {
  const std::size_t bytes = sizes_.units[unit].state.total();
  if (placement_of(unit) != StatePlacement::kDevice) {
    return allocate_streamed(bytes, resident_bytes_.optimizer, placement_of(unit));
  }
  return allocate_on_device(
      bytes, fmt::format("the optimizer state of unit \"{}\"", model_.units[unit].name));
}

std::byte* Rank::allocate_accumulator(std::size_t unit) {
  const std::size_t bytes = sizes_.units[unit].accumulator;
  if (sizes_.units[unit].gradient_on_device) {
    return allocate_on_device(bytes,
                              fmt::format("the gradient of unit \"{}\"", model_.units[unit].name));
  }
  // A device copies gradients straight into it.
  return sizes_.accumulators_shared || accelerator_
             ? allocate_shared(bytes, resident_bytes_.gradients)
             : allocate(bytes, resident_bytes_.gradients);
}

SegmentTime Rank::time_of(std::size_t segment, Phase phase, const Batch& batch,
                          TimePoint inputs_there) {
  if (!accelerator_ || !accelerator_->is_simulated()) {
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
  const bool recomputes = options_.recomputes && segment + 1 < model_.segments.size();
  const double flops = is_backward ? backward_flops(shape, rows, length, recomputes)
                                   : forward_flops(shape, rows, length);
  return {accelerator_->seconds_of(flops), inputs_there, device_time_};
}

}  // namespace tandem
