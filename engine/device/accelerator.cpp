#include "engine/device/accelerator.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {
Duration duration_of(double seconds) noexcept {
  return Duration(static_cast<std::int64_t>(seconds * 1e9));
}
}  // namespace

SegmentTime::SegmentTime(double seconds) noexcept
    : began_(Clock::real().now()), start_(began_), least_(duration_of(seconds)) {}

SegmentTime::SegmentTime(double seconds, TimePoint inputs_there, DeviceTime& device) noexcept
    : began_(Clock::real().now()),
      start_(std::max(inputs_there, device.free_since)),
      least_(duration_of(seconds)),
      device_(&device) {}

SegmentTime::~SegmentTime() {
  const TimePoint now = Clock::real().now();
  const TimePoint end = start_ + std::max(least_, now - began_);
  if (device_ != nullptr) {
    device_->free_since = end;
    device_->busy_ns.fetch_add((end - start_).count(), std::memory_order_relaxed);
  }
  if (now >= end) {
    return;
  }
  // The kernel may end sleeps 50 us late by default: as much as a small segment takes.
  thread_local const bool is_exact = ::prctl(PR_SET_TIMERSLACK, 1UL) == 0;
  (void)is_exact;
  std::this_thread::sleep_until(end);
}

Accelerator::Accelerator(EventLoop& loop, int rank, const SimSpec& spec)
    : spec_(spec),
      device_(std::make_unique<SimDevice>(
          loop, SimDevice::Options{.name = fmt::format("sim{}", rank),
                                   .time = SimDevice::Time::kReal,
                                   .memory_bytes = static_cast<std::uint64_t>(spec.memory_bytes),
                                   .compute_flops_per_s = spec.compute_flops_per_s,
                                   .memory_bytes_per_s = spec.memory_bytes_per_s,
                                   .to_device_bytes_per_s = spec.to_device_bytes_per_s,
                                   .to_host_bytes_per_s = spec.to_host_bytes_per_s,
                                   .operation_latency = duration_of(spec.latency_s),
                                   .acts = spec.acts})),
      sim_(static_cast<SimDevice*>(device_.get())),
      takes_real_time_(true) {}

Accelerator::Accelerator(std::unique_ptr<SimDevice> device)
    : device_(std::move(device)), sim_(static_cast<SimDevice*>(device_.get())) {}

Accelerator::Accelerator(EventLoop& loop, std::shared_ptr<Gpu> gpu)
    : gpu_(std::move(gpu)),
      device_(std::make_unique<CudaDevice>(
          loop, *gpu_->api,
          CudaDevice::Options{.index = gpu_->index, .name = gpu_->name, .node = gpu_->node})),
      cuda_(static_cast<CudaDevice*>(device_.get())),
      compute_stream_(cuda_->adopt("compute", gpu_->compute->stream())),
      slab_(*gpu_->api) {}

Accelerator::~Accelerator() = default;

std::unique_ptr<CollectiveBackend> Accelerator::connect(Communicator& communicator, EventLoop& loop,
                                                        CpuPool& pool) {
  if (cuda_ == nullptr) {
    return stage(communicator.make_backend(loop, pool));
  }
  TANDEM_CHECK(backend_ == nullptr, "a device is connected once");
  std::unique_ptr<CollectiveBackend> made =
      communicator.make_gpu_backend(loop, pool, *cuda_, gpu_->uuid);
  backend_ = made.get();
  staged_ = dynamic_cast<StagedBackend*>(backend_);
  return made;
}

std::unique_ptr<CollectiveBackend> Accelerator::stage(std::unique_ptr<CollectiveBackend> host) {
  TANDEM_CHECK(backend_ == nullptr, "a device is connected once");
  auto made = std::make_unique<StagedBackend>(*device_, std::move(host));
  backend_ = staged_ = made.get();
  return made;
}

std::unique_ptr<CollectiveBackend> Accelerator::connect_group(
    std::unique_ptr<CollectiveBackend> group) {
  TANDEM_CHECK(group_ == nullptr, "a device is connected to one group");
  auto made = std::make_unique<StagedBackend>(*device_, std::move(group));
  group_ = made.get();
  return made;
}

std::size_t Accelerator::staging_bytes() const noexcept {
  return (group_ != nullptr ? group_->staging_bytes() : 0) +
         (staged_ != nullptr ? staged_->staging_bytes() : 0) + (slab_ ? slab_->taken_bytes() : 0);
}

Placed<std::byte> Accelerator::allocate(std::size_t bytes, std::string_view purpose) {
  try {
    buffers_.push_back(device_->allocate(bytes));
    std::byte* const memory = buffers_.back().data();
    used_bytes_ += bytes;
    if (sim_ != nullptr && sim_->has_memory()) {
      std::memset(memory, 0, bytes);  // the pages are there before they are needed
    }
    return {Place::kDevice, memory};
  } catch (const DeviceOutOfMemory&) {
    throw failure(ExitCode::kRefused, "device",
                  "{}: {} bytes of device memory for {} do not fit, {} of {} are free; use "
                  "stage 3, fewer gather_slots, placement cpu, a smaller model or more memory",
                  device_->name(), bytes, purpose, device_->free_bytes(), device_->memory_bytes());
  }
}

void Accelerator::hold(std::int64_t more_bytes) {
  TANDEM_CHECK(more_bytes >= 0 || held_bytes_ >= static_cast<std::size_t>(-more_bytes),
               "no more is let go than is held");
  held_bytes_ += static_cast<std::size_t>(more_bytes);
  most_held_bytes_ = std::max(most_held_bytes_, held_bytes_);
  if (more_bytes > 0 && held_bytes_ > device_->free_bytes()) {
    throw failure(ExitCode::kRefused, "device",
                  "{}: {} bytes of segments' boundaries do not fit, {} of {} are free beside what "
                  "stays; use --activation_offload 1, a smaller micro-batch or shorter rows",
                  device_->name(), held_bytes_, device_->free_bytes(), device_->memory_bytes());
  }
}

void Accelerator::reduce_there() {
  if (staged_ != nullptr && gpu_ != nullptr) {
    staged_->use_kernels(*gpu_->sums);
  }
}

double Accelerator::to_device_busy_s() const {
  return sim_ != nullptr ? sim_->busy_s(SimEngines::Engine::kToDevice) : 0;
}
double Accelerator::to_host_busy_s() const {
  return sim_ != nullptr ? sim_->busy_s(SimEngines::Engine::kToHost) : 0;
}

DeviceEvent Accelerator::queued() { return compute_stream_->record(); }

void Accelerator::in_use(std::span<std::byte* const> blocks, const DeviceEvent& event) {
  TANDEM_CHECK(backend_ != nullptr, "a device is connected before it computes");
  for (const std::byte* block : blocks) {
    if (block != nullptr) {
      backend_->begin_behind(block, event);
      if (group_ != nullptr) {
        group_->begin_behind(block, event);
      }
    }
  }
}

}  // namespace tandem
