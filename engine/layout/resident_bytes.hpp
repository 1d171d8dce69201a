// engine/layout/resident_bytes.hpp — the bytes that a rank keeps in memory for the whole run.
#pragma once

#include <cstddef>

namespace tandem {

struct ResidentBytes {
  std::size_t weights = 0;     // in compute type, slots included; in fp32 they are the master
  std::size_t gradients = 0;   // accumulators and slots
  std::size_t optimizer = 0;   // moments, and the master of 16-bit weights
  std::size_t shadows = 0;     // for updates ahead of the verdict
  std::size_t staging = 0;     // between host and device, at most
  std::size_t boundaries = 0;  // of segments, that lie in host memory for their backward
  // Peak bytes on the device: the engine's blocks; on a GPU also all that ATen's allocator took, on
  // a simulated device the boundaries that activation checkpointing keeps. 0 without a device.
  std::size_t device = 0;

  /// All bytes of the host.
  [[nodiscard]] std::size_t total() const noexcept {
    return weights + gradients + optimizer + shadows + staging + boundaries;
  }
};

}  // namespace tandem
