// trainer/program/resident_set.hpp — the resident memory of this process, divided as the memory
// plan predicts it. Any thread.
#pragma once

#include <cstdint>

namespace tandem {

struct ResidentSet {
  // private memory and files, at the highest: without memory shared between ranks
  std::int64_t host_peak = 0;
  std::int64_t shared = 0;  // of this rank's own arena, which its peers read
};

/// The resident set of now; memory shared between ranks only grows until the run ends. Takes a
/// millisecond.
[[nodiscard]] ResidentSet resident_set();

}  // namespace tandem
