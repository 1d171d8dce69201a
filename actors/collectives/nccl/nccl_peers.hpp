// actors/collectives/nccl/nccl_peers.hpp — the exchange among ranks outside of NCCL: the order of
// launches, and failed ranks.
//
// NCCL requires that ranks launch in one order across communicators, but gathers and reductions are
// two sequences whose operations become ready in a different order on each rank. So rank 0 decides:
// its launches are the turns 0, 1, 2, ... It publishes each launch, and the other ranks launch the
// same operation in that turn. Rank 0's order cannot block another rank, because an operation has
// the same dependencies on all ranks.
// Thread rule: the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "actors/collectives/awaited.hpp"
#include "actors/collectives/shm/shm_control.hpp"
#include "runtime/clock.hpp"

namespace tandem {

/// A launch of one rank.
struct NcclLaunch {
  std::uint32_t comm = 0;
  ShmHeader operation;
};

/// The failed rank and the cause.
struct NcclLoss {
  std::uint32_t failed_rank = 0;
  std::string cause;
};

class NcclPeers {
 public:
  /// The most turns by which rank 0 may be ahead of the others.
  static constexpr std::uint64_t kMostAhead = 64;

  virtual ~NcclPeers() = default;

  /// Publishes rank 0's launch of a turn. Rank 0 calls it once per turn, in order, when all ranks
  /// have begun turn - kMostAhead.
  virtual void decide(std::uint64_t turn, const NcclLaunch& launch) noexcept = 0;
  /// Returns rank 0's decision for this rank's next turn, `turn`; nullopt if it is not known yet.
  [[nodiscard]] virtual std::optional<NcclLaunch> decided(std::uint64_t turn) noexcept = 0;
  /// Publishes that this rank has begun all turns before `turn`.
  virtual void has_begun(std::uint64_t turn) noexcept = 0;
  /// Returns a rank that, as far as is known here, has not begun all turns before `turn`; nullopt
  /// if all have.
  [[nodiscard]] virtual std::optional<std::uint32_t> behind(std::uint64_t turn) noexcept = 0;

  /// Reports a failure to all ranks. The first cause counts.
  virtual void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept = 0;
  /// Returns the failure if a rank aborted or a rank's process ended.
  [[nodiscard]] virtual std::optional<NcclLoss> loss() noexcept = 0;

  // ---- the rank that holds the others up: a rank that is behind, or the rank it awaits ----
  /// Returns the rank from which this rank receives rank 0's decisions.
  [[nodiscard]] virtual std::uint32_t decider() const noexcept { return 0; }
  /// Returns a rank that is awaited by the ranks that have begun all turns before `turn`.
  [[nodiscard]] virtual std::optional<std::uint32_t> waits_for(std::uint64_t turn) noexcept {
    return behind(turn);
  }
  /// A function that returns the ranks that this rank has awaited for `at_least`.
  using Waits = std::function<Awaited(Duration at_least)>;
  /// Sets a function that is called at each tick, on the loop; null for none.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overriding functions keep it
  virtual void ask_for_waits(Waits /*waits*/) {}
  /// Returns the rank at fault and the cause for a wait of this rank for `awaited` that takes too
  /// long.
  [[nodiscard]] virtual NcclLoss failed_behind(std::uint32_t awaited) const {
    return {awaited, ""};
  }
};

}  // namespace tandem
