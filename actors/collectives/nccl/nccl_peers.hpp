// actors/collectives/nccl/nccl_peers.hpp — what ranks tell each other beside NCCL: in which order
// to launch, and which rank has failed.
//
// NCCL asks that ranks launch in one order across communicators, but gathers and reductions are two
// sequences whose operations become ready in another order on each rank. So rank 0 decides: each of
// its launches is a turn 0, 1, 2, ..., it writes down what it launches, and the others launch just
// that as their own. Rank 0's order fits every rank, because what an operation waits for is the
// same on all of them.
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

/// A launch as its rank understands it.
struct NcclLaunch {
  std::uint32_t comm = 0;
  ShmHeader operation;
};

/// Why nothing can go on, and which rank failed.
struct NcclLoss {
  std::uint32_t failed_rank = 0;
  std::string cause;
};

class NcclPeers {
 public:
  /// Rank 0 may be this many turns ahead of the others.
  static constexpr std::uint64_t kMostAhead = 64;

  virtual ~NcclPeers() = default;

  /// Rank 0, turn by turn, each once no rank is behind turn - kMostAhead + 1.
  virtual void decide(std::uint64_t turn, const NcclLaunch& launch) noexcept = 0;
  /// Rank 0's decision for the turn, if there is one; asked for the next turn of this rank.
  [[nodiscard]] virtual std::optional<NcclLaunch> decided(std::uint64_t turn) noexcept = 0;
  /// This rank has begun all turns before `turn`.
  virtual void has_begun(std::uint64_t turn) noexcept = 0;
  /// A rank that has not begun all turns before `turn`, as far as is known here.
  [[nodiscard]] virtual std::optional<std::uint32_t> behind(std::uint64_t turn) noexcept = 0;

  /// Tells all. The first cause counts.
  virtual void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept = 0;
  /// A rank aborted, or a rank's process is gone.
  [[nodiscard]] virtual std::optional<NcclLoss> loss() noexcept = 0;

  // ---- who holds the others up: who is behind, or for whom that one waits ----
  /// Through whom this rank hears of rank 0's decisions.
  [[nodiscard]] virtual std::uint32_t decider() const noexcept { return 0; }
  /// A rank for which those wait that have begun all turns before `turn`.
  [[nodiscard]] virtual std::optional<std::uint32_t> waits_for(std::uint64_t turn) noexcept {
    return behind(turn);
  }
  /// For whom this rank has waited at least that long.
  using Waits = std::function<Awaited(Duration at_least)>;
  /// Asked from now on, on the loop; null: not any more.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps it
  virtual void ask_for_waits(Waits /*waits*/) {}
  /// Names the rank that holds this one up, which waits for `awaited`, and its known cause.
  [[nodiscard]] virtual NcclLoss failed_behind(std::uint32_t awaited) const {
    return {awaited, ""};
  }
};

}  // namespace tandem
