// trainer/program/resident_set.hpp — the resident memory of this process, divided as the memory
// plan predicts it. Any thread.
#pragma once

#include <cstdint>

namespace tandem {

struct ResidentSet {
  // the peak of private memory and files, without memory shared between ranks
  std::int64_t host_peak = 0;
  std::int64_t shared = 0;  // of this rank's own arena, which its peers read
};

/// Returns the current resident set; this takes a millisecond. Memory shared between ranks only
/// grows until the run ends.
[[nodiscard]] ResidentSet resident_set();

}  // namespace tandem
