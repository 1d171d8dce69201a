// tests/sim/operations.hpp — the operations that a rehearsed rank awaits, by kind.
//
// A run counts them; another run of the same seed is the same execution up to the one that fails,
// or during which the rank is stopped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::sim_test {

enum class Operation : std::uint8_t {
  kTurn,         // a few steps of the rank's loop: a rank dies or is stopped before one
  kVisit,        // of a segment, on the compute lane
  kKernel,       // of the simulated device
  kCopy,         // likewise
  kUpdateChunk,  // of the optimizer's pool
  kCopyChunk,    // of the pool for copies: data, sums inside of a host, check sums, saves
  kCollective,   // the begin of one (even numbers), and its end
  kFrame,        // a send or a receive between hosts
  kFileCall,     // of data and checkpoints
  kNvmeCall,     // of state, weights and boundaries
  kCount,
};
inline constexpr auto kOperations = static_cast<std::size_t>(Operation::kCount);

/// [operation] how many there were.
using OperationCounts = std::array<std::uint64_t, kOperations>;

struct OperationText {
  const char* name;
  /// A part of the error with which a rank ends if one of them fails.
  const char* error;
};
inline constexpr std::array<OperationText, kOperations> kOperationTexts = {{
    {"turn", ""},
    {"visit", "a visit failed"},
    {"kernel", "\" failed"},
    {"copy", "bytes failed"},
    {"update chunk", "a chunk failed"},
    {"copy chunk", "a chunk failed"},
    {"collective", "a collective failed"},
    {"frame", "is lost"},
    {"file call", "Input/output error"},
    {"NVMe call", "Input/output error"},
}};
[[nodiscard]] inline const OperationText& text_of(Operation operation) {
  return kOperationTexts[static_cast<std::size_t>(operation)];
}

}  // namespace tandem::sim_test
