// engine/accelerator.hpp — the device of a rank: memory for slots and whole blocks, links to it, and how long it computes.
//
// Only where things lie differs from a rank on the CPU: slots and blocks are device memory, gathers and reductions pass
// through a StagedBackend. A simulated device's memory is the host's, so ATen runs on it as ever; a segment then takes at
// least what the described device would need for it (SegmentTime).
// Invariant: what it allocated lives until it is destroyed, after the actors that use it. Loop thread, but for SegmentTime.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "actors/staged_backend.hpp"
#include "engine/sim_spec.hpp"
#include "runtime/device/sim_device.hpp"

namespace tandem {

/// A simulated device's own time.
struct DeviceTime {
  TimePoint free_since;                  // its last segment ended then; compute lane
  std::atomic<std::int64_t> busy_ns{0};  // with segments that have ended; any thread
};

/// Compute lane: a guard around a segment's work, whose destructor lets the time pass that a device would have needed. The
/// lane sleeps through it, so the CPU is free meanwhile, as it would be beside a real device.
/// A device has its next segment queued: that starts when the one before has ended and its inputs are there, not when a
/// host's thread has woken up to it.
class SegmentTime {
 public:
  SegmentTime() noexcept = default;               // of no device
  explicit SegmentTime(double seconds) noexcept;  // from now on
  SegmentTime(double seconds, TimePoint inputs_there, DeviceTime& device) noexcept;
  ~SegmentTime();
  SegmentTime(const SegmentTime&) = delete;
  SegmentTime& operator=(const SegmentTime&) = delete;

 private:
  TimePoint began_{};  // on the host
  TimePoint start_{};  // on the device
  Duration least_{0};
  DeviceTime* device_ = nullptr;
};

class Accelerator {
 public:
  /// A simulated device in real time.
  Accelerator(EventLoop& loop, int rank, const SimSpec& spec);

  /// The back end for operands on this device, once; to be destroyed before the accelerator.
  std::unique_ptr<CollectiveBackend> stage(std::unique_ptr<CollectiveBackend> inner);

  /// Device memory, zeroed. Throws Error(kRefused) that says for what it was and what to change. After stage().
  std::byte* allocate(std::size_t bytes, std::string_view purpose);

  [[nodiscard]] std::size_t used_bytes() const noexcept {
    return static_cast<std::size_t>(device_.memory_bytes() - device_.free_bytes());
  }
  [[nodiscard]] std::size_t staging_bytes() const noexcept { return staged_->staging_bytes(); }
  /// What the device needs for so many operations, in seconds.
  [[nodiscard]] double seconds_of(double flops) const noexcept {
    return spec_.latency_s + flops / spec_.compute_flops_per_s;
  }
  /// Time in which the link of that direction worked, in seconds.
  [[nodiscard]] double to_device_busy_s() const {
    return device_.busy_s(SimEngines::Engine::kToDevice);
  }
  [[nodiscard]] double to_host_busy_s() const {
    return device_.busy_s(SimEngines::Engine::kToHost);
  }

 private:
  SimSpec spec_;
  SimDevice device_;
  StagedBackend* staged_ = nullptr;  // the rank owns it
};

}  // namespace tandem
