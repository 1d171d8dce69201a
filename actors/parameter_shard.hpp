// actors/parameter_shard.hpp — one actor per unit: owns this rank's slice of the weights, and
// gathers the whole unit.
//
// The caller provides the shard's memory; its type is the compute dtype. AcquireUnit waits until
// the shard has the wanted version, gets a slot in ticket order, gathers the shards of all ranks
// into it (or finds the unit there in that version, and then does not gather) and replies with the
// whole padded block. A unit that stays replicated has a block of its own instead of slots, and is
// gathered once per version. It is gathered in place if the shard lies inside of the block; if the
// block is in an accelerator's memory, the shard is on the host.
//
// States, per visit: waiting for its version -> for its slot -> for its gather -> held -> released.
// Visits of one unit pass through the first three states one after another, in ticket order.
// Several visits may be in held (a tied weight).
// Invariant: a reply's block holds exactly the wanted version until ReleaseUnit.
//
// Buffers: the shard's bytes belong to this actor, except from UpdateStarts to ParamReady or
// UpdateRolledBack: then CpuOptimizer writes them. No gather reads them meanwhile, because the plan
// orders both. A step's update is sent after the last gradient of the unit is reduced, so after the
// last visit of the old version. The first gather of the new version waits for ParamReady. Both are
// checked. An update that is rolled back leaves the old version unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "actors/collectives/collectives.hpp"
#include "actors/memory/ring_queue.hpp"
#include "actors/slot_pool.hpp"
#include "actors/unit_layout.hpp"
#include "runtime/actor.hpp"

namespace tandem {

inline constexpr std::uint64_t kSameAsTicket = UINT64_MAX;

/// Waits for the version, a slot and the gather. The reply, the whole padded block in compute
/// dtype, is lent until the ReleaseUnit of this visit. Versions and tickets of one unit never
/// decrease; without slots the ticket serves only to check that.
struct AcquireUnit {
  using Reply = Placed<std::byte>;
  std::uint64_t version = 0;
  std::uint64_t ticket = 0;  // of the unit's slot pool
  // The gather's number in Collectives. It differs from the ticket only with several slot pools.
  std::uint64_t gather_order = kSameAsTicket;
};

/// Releases the oldest visit that holds the block. `next_use` is the ticket of the unit's next
/// visit; kNoNextUse if it is not known.
struct ReleaseUnit {
  std::uint64_t next_use = kNoNextUse;
};

/// Tells the shard that CpuOptimizer writes its bytes until the ParamReady or UpdateRolledBack of
/// `version` that follows.
struct UpdateStarts {
  std::uint64_t version = 0;
};

/// The shard has `version` now. A resident older copy is invalid: no visit may ask for an older
/// version.
struct ParamReady {
  std::uint64_t version = 0;
};

/// The started update was rolled back: the shard has its old content.
struct UpdateRolledBack {
  std::uint64_t version = 0;
};

using ParameterShardAddress =
    Address<AcquireUnit, ReleaseUnit, UpdateStarts, ParamReady, UpdateRolledBack>;

class ParameterShard : public Actor<ParameterShard, AcquireUnit, ReleaseUnit, UpdateStarts,
                                    ParamReady, UpdateRolledBack> {
 public:
  struct Options {
    Name name = "shard";
    std::uint32_t unit = 0;
    UnitLayout layout;
    DType type = DType::kF32;
    Placed<std::byte> shard;  // layout.shard_elements of `type`; outlives the actor
    // The block of a unit that stays replicated; `shard` may lie inside or outside of it. Null: the
    // unit uses slots.
    Placed<std::byte> block;
    std::uint64_t version = 0;  // the version that the shard has at the start
    SlotPoolAddress slots;      // used if there is no block
    CollectivesAddress collectives;
  };

  struct Counters {
    std::uint64_t acquired = 0;
    std::uint64_t resident = 0;    // of these, without a gather
    double version_waiting_s = 0;  // time for which requests waited for the optimizer
    double gather_waiting_s = 0;   // time for which visits waited for their gathers and their turns
  };

  explicit ParameterShard(Options options);

  void handle(AcquireUnit request, ReplyTo<AcquireUnit> reply);
  Task<> handle(ReleaseUnit release);
  void handle(UpdateStarts update);
  void handle(ParamReady ready);
  void handle(UpdateRolledBack update);

  /// Loop thread.
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }
  /// Returns the time at which the shard got its version; the clock's epoch for its first version.
  [[nodiscard]] TimePoint version_since() const noexcept { return version_since_; }

 private:
  struct Pending {
    AcquireUnit request;
    std::optional<ReplyTo<AcquireUnit>> reply;
    TimePoint since;
  };

  [[nodiscard]] bool shard_lies_in_block() const noexcept;
  [[nodiscard]] bool block_is_shard() const noexcept;  // the same bytes
  void serve_if_possible();
  Task<> serve();
  Task<Placed<std::byte>> acquire(AcquireUnit request);
  Task<> gather(std::uint64_t order, Placed<std::byte> into);

  Options options_;
  std::uint64_t version_;
  TimePoint version_since_;
  bool serving_ = false;
  bool updating_ = false;
  bool gathering_ = false;
  std::uint64_t next_ticket_ = 0;               // no visit may have a lower one
  std::optional<std::uint64_t> block_version_;  // the version that the whole block has
  RingQueue<Pending> pending_;                  // by ticket
  RingQueue<std::uint64_t> held_;               // tickets, oldest first
  Counters counters_;
};

}  // namespace tandem
