// engine/resident_bytes.hpp — what a rank holds in host memory for the whole run.
#pragma once

#include <cstddef>

namespace tandem {

struct ResidentBytes {
  std::size_t weights = 0;    // in compute type, slots included; fp32: the master is this
  std::size_t gradients = 0;  // accumulators and slots
  std::size_t optimizer = 0;  // moments, and the master of 16-bit weights
  std::size_t twins = 0;      // for updates ahead of the verdict

  [[nodiscard]] std::size_t total() const noexcept {
    return weights + gradients + optimizer + twins;
  }
};

}  // namespace tandem
