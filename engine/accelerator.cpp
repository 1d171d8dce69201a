#include "engine/accelerator.hpp"

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
      device_(loop, {.name = fmt::format("sim{}", rank),
                     .time = SimDevice::Time::kReal,
                     .memory_bytes = static_cast<std::uint64_t>(spec.memory_bytes),
                     .compute_flops_per_s = spec.compute_flops_per_s,
                     .to_device_bytes_per_s = spec.to_device_bytes_per_s,
                     .to_host_bytes_per_s = spec.to_host_bytes_per_s,
                     .operation_latency = duration_of(spec.latency_s),
                     .moves_bytes = spec.moves_bytes}) {}

std::unique_ptr<CollectiveBackend> Accelerator::stage(std::unique_ptr<CollectiveBackend> inner) {
  TANDEM_CHECK(staged_ == nullptr, "a device is staged once");
  auto staged = std::make_unique<StagedBackend>(device_, std::move(inner));
  staged_ = staged.get();
  return staged;
}

std::byte* Accelerator::allocate(std::size_t bytes, std::string_view purpose) {
  try {
    std::byte* memory = staged_->allocate_on_device(bytes);
    std::memset(memory, 0, bytes);
    return memory;
  } catch (const DeviceOutOfMemory&) {
    throw failure(ExitCode::kRefused, "device",
                  "{}: {} bytes of device memory for {} do not fit, {} of {} are free; use "
                  "--stage 3, a smaller --gather_slots, a smaller model or more memory",
                  device_.name(), bytes, purpose, device_.free_bytes(), device_.memory_bytes());
  }
}

}  // namespace tandem
