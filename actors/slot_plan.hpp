// actors/slot_plan.hpp — decides which visit gets which slot: SlotPool's decisions, as a plain
// state machine.
//
// A *visit* is one use of a unit by the plan (forward or backward of a segment). Visits have
// tickets 0, 1, 2, ... in plan order. Each visit is decided exactly once, in that order: it gets
// the slot that already has its unit in the wanted version (resident), or a slot whose content is
// evicted.
//
// Invariant: a decision depends only on the plan, never on the arrival of messages. Ranks must
// agree on it, because a visit that is not resident needs a collective. So the rule uses only
// tickets: with F = max_in_flight,
//   - ticket t is decided once all tickets below t are decided and all tickets <= t - F are
//     released;
//   - its victim is chosen among the slots last used by tickets <= t - F (all released by then):
//     the one whose content has the farthest next use, the lowest index among equals; empty and
//     outdated slots count as farthest.
// A slot used by one of the last F - 1 tickets is never a victim, even if it was released early.
//
// A victim always exists, because the last F - 1 tickets use at most F - 1 slots, and the pool has
// at least F.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tandem {

inline constexpr std::uint32_t kNoUnit = UINT32_MAX;
inline constexpr std::uint64_t kNoNextUse = UINT64_MAX;

/// The slot of a visit.
struct SlotDecision {
  std::uint64_t ticket = 0;
  std::size_t slot = 0;
  bool resident = false;  // the slot already holds the wanted unit and version
};

class SlotPlan {
 public:
  struct Options {
    std::size_t slots = 1;
    std::size_t max_in_flight = 1;  // F: the most visits decided and not yet released; <= slots
    std::size_t max_ahead = 256;    // a request may be this far ahead of the next decision
  };

  explicit SlotPlan(Options options);

  /// Visit `ticket` requests `unit` at `version` (kNoUnit: any slot, the content does not matter).
  /// Call it once per ticket.
  void request(std::uint64_t ticket, std::uint32_t unit, std::uint64_t version);

  /// Visit `ticket` releases its slot, whose content is next used by visit `next_use` (kNoNextUse:
  /// never, or not known). Call it once per decided ticket.
  void release(std::uint64_t ticket, std::uint64_t next_use);

  /// Returns the next decision that can be made now; call it until it returns nullopt.
  [[nodiscard]] std::optional<SlotDecision> decide();

  [[nodiscard]] std::uint64_t next_ticket() const noexcept { return next_; }
  [[nodiscard]] std::size_t in_flight() const noexcept {
    return static_cast<std::size_t>(next_ - floor_);
  }

 private:
  enum class VisitState : std::uint8_t { kFree, kRequested, kDecided, kReleased };

  struct Visit {
    VisitState state = VisitState::kFree;
    std::uint32_t unit = kNoUnit;
    std::uint64_t version = 0;
    std::size_t slot = 0;
  };

  struct Slot {
    std::uint32_t unit = kNoUnit;
    std::uint64_t version = 0;
    std::uint64_t last_ticket = 0;
    std::uint64_t next_use = kNoNextUse;
    bool used = false;  // false: no ticket yet
  };

  Visit& visit(std::uint64_t ticket) { return visits_[ticket % visits_.size()]; }
  [[nodiscard]] std::size_t victim(std::uint64_t ticket) const;

  Options options_;
  std::vector<Slot> slots_;
  std::vector<Visit> visits_;  // ring over [floor_, next_ + max_ahead)
  std::uint64_t next_ = 0;     // the next ticket to decide
  std::uint64_t floor_ = 0;    // all tickets below it are released
};

}  // namespace tandem
