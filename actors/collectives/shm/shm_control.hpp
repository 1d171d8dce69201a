// actors/collectives/shm/shm_control.hpp — the counters and headers that a rank publishes in shared
// memory: the first pages of each arena.
//
// Only the arena's rank writes them; all ranks read them. Counters only grow; a reader that sees a
// value also sees everything that was written before it. There are two channels, one for each
// sequence of operations.
//   arrived   operations that this rank has begun; the header of the last one is published
//   staged    steps whose piece (of an operand outside of the arena) is in the transfer buffer
//   taken     steps in which this rank has read everything that it needs from its peers
// The heartbeat (`heartbeats`) is a counter that the rank's loop advances regularly. At the same
// time the rank publishes which ranks it awaits, and the waits that it has received from ranks on
// other hosts. The header and exchanged payload of operation n stay until operation n + 2 begins:
// by then every rank has begun n + 1, and so has finished n.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "actors/collectives/collective_backend.hpp"

namespace tandem {

enum class ShmKind : std::uint32_t {
  kNone,
  kAllGather,
  kAllToAll,
  kReduceScatter,
  kAllReduce,
  kExchange,
};

/// A rank's description of an operation, which the others compare with theirs.
struct ShmHeader {
  ShmKind kind = ShmKind::kNone;
  std::uint32_t types = 0;  // of a reduction: element type and mode
  std::uint32_t is_staged = 0;
  std::uint64_t number = 0;  // of the operation in its channel, as the caller counts
  std::uint64_t phase = 0;   // of the operation; an all-reduce has three
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // of the operand in the arena, if it is not staged

  /// Returns whether both describe the same operation. The operands may lie at different places.
  [[nodiscard]] bool agrees_with(const ShmHeader& other) const noexcept {
    return kind == other.kind && types == other.types && number == other.number &&
           phase == other.phase && bytes == other.bytes;
  }
};

struct alignas(64) ShmCounter {
  std::atomic<std::uint64_t> value{0};
};

struct ShmChannel {
  static constexpr std::size_t kArrived = 0;
  static constexpr std::size_t kStaged = 1;
  static constexpr std::size_t kTaken = 2;

  std::array<ShmCounter, 3> counters;
  std::array<ShmHeader, 2> headers;
  std::array<std::array<std::byte, kExchangeBytes>, 2> payload;
};

enum class ShmState : std::uint32_t { kRuns, kLeft, kAborted };

struct ShmControl {
  static constexpr std::size_t kCauseBytes = 1024;
  static constexpr std::size_t kChannels = 2;
  static constexpr std::size_t kRanksMax = 4096;  // of all hosts

  alignas(64) std::atomic<std::uint64_t> asleep{
      // 0: the rank is awake. Else: the number of its sleep in the upper half, and for each channel
      // the awaited rank plus 1.
      0};
  alignas(64) std::atomic<std::uint64_t> heartbeats{0};
  // [rank among all] a packed Awaited: this rank's own, and those that it receives through a net.
  std::array<std::atomic<std::uint64_t>, kRanksMax> awaited{};
  alignas(64) std::atomic<ShmState> state{ShmState::kRuns};
  std::uint32_t failed_rank = 0;  // valid in kAborted; written before the state
  std::array<char, kCauseBytes> cause{};
  std::array<ShmChannel, kChannels> channels;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::is_standard_layout_v<ShmControl>);

}  // namespace tandem
