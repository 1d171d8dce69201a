// actors/slot_pool.hpp — N equal buffers for gathered units or whole-unit gradients: the memory
// bound of a rank.
//
// States of a slot: empty -> in use (by one or more visits of the same unit and version) ->
// released, content kept -> in use again (resident) or evicted. SlotPlan makes all decisions,
// strictly in ticket order and never in order of arrival, so every rank makes the same ones. If
// nothing is ever evicted (stages 0-2), a pool has as many slots as units; or, if the units' sizes
// differ much, each unit has a pool of one slot.
// Buffers: the pool owns the memory for its whole life. A granted slot belongs to its visit until
// ReleaseSlot.
//
// Why no visit waits forever. Claim: every ticket is granted, provided that (1) every ticket is
// asked for and released once, (2) the release of ticket s needs no grant of a ticket >= s + F (F =
// max_in_flight, so the holder of a slot asks for at most F - 1 more before giving it back), (3)
// everything else for which the release of s waits, a parameter version or a collective, is caused
// by visits before s. Proof: let t be the least ticket that is never granted. Tickets below t are
// granted. Ticket t waits only for the releases of tickets <= t - F; each of these needs, by (2),
// grants of tickets < t only, which happen, and by (3) things that happen. So they are released,
// SlotPlan finds a victim (there are at least F slots), and t is granted: a contradiction. With
// several pools the claim holds for all of them together when (2) and (3) are read in plan order.
// The collectives fit in: gathers are ordered like their tickets, and reductions wait only for
// reductions of earlier visits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/memory/placed.hpp"
#include "actors/slot_plan.hpp"
#include "runtime/actor.hpp"
#include "runtime/clock.hpp"

namespace tandem {

struct SlotGrant {
  Placed<std::byte> data;
  // The slot already has the wanted unit in the wanted version (its gather may still be under way).
  bool resident = false;
};

/// Visit `ticket` requests a slot for `unit` at `version` (kNoUnit: any slot, its content does not
/// matter).
struct AcquireSlot {
  using Reply = SlotGrant;
  std::uint64_t ticket = 0;
  std::uint32_t unit = kNoUnit;
  std::uint64_t version = 0;
};

/// Visit `ticket` releases its slot; the content is next used by visit `next_use` (kNoNextUse:
/// never, or unknown).
struct ReleaseSlot {
  std::uint64_t ticket = 0;
  std::uint64_t next_use = kNoNextUse;
};

using SlotPoolAddress = Address<AcquireSlot, ReleaseSlot>;

class SlotPool : public Actor<SlotPool, AcquireSlot, ReleaseSlot> {
 public:
  struct Options {
    Name name = "slots";
    Placed<std::byte> memory;    // plan.slots * slot_bytes, 64-byte aligned; outlives the pool
    std::size_t slot_bytes = 0;  // a multiple of 64
    SlotPlan::Options plan;
  };

  struct Counters {
    std::uint64_t grants = 0;
    std::uint64_t resident = 0;  // of these, found in place
    double waiting_s = 0;        // time from request to grant, summed over grants
    std::size_t in_flight_max = 0;
  };

  explicit SlotPool(Options options);

  void handle(AcquireSlot request, ReplyTo<AcquireSlot> reply);
  void handle(ReleaseSlot release);

  /// Loop thread.
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  struct Waiting {
    std::optional<ReplyTo<AcquireSlot>> reply;
    TimePoint since;
  };

  void grant_what_can_be();

  Options options_;
  SlotPlan plan_;
  std::vector<Waiting> waiting_;  // ring by ticket
  Counters counters_;
};

}  // namespace tandem
