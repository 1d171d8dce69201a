// engine/accelerator.hpp — the device of a rank: memory for slots and whole blocks, links to it, and how long it computes.
//
// Only where things lie differs from a rank on the CPU: slots and blocks are device memory, gathers and reductions pass
// through a StagedBackend. A simulated device's memory is the host's, so ATen runs on it as ever; a segment then takes at
// least what the described device would need for it (SegmentTime).
// Invariant: what it allocated lives until it is destroyed, after the actors that use it. Loop thread, but for SegmentTime.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

#include "actors/staged_backend.hpp"
#include "engine/sim_spec.hpp"
#include "runtime/device/sim_device.hpp"

namespace tandem {

/// Compute lane: from construction to destruction at least so many seconds pass. The lane sleeps through the rest, so the
/// CPU is free meanwhile, as it would be beside a real device.
class SegmentTime {
 public:
  explicit SegmentTime(double seconds) noexcept;
  ~SegmentTime();
  SegmentTime(const SegmentTime&) = delete;
  SegmentTime& operator=(const SegmentTime&) = delete;

 private:
  std::chrono::steady_clock::time_point end_;
  bool waits_;
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
