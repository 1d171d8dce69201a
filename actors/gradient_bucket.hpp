// actors/gradient_bucket.hpp — one actor per unit: reduces the gradients of micro-steps into this
// rank's slice.
//
// AcquireGradient lends a slot for the whole unit's gradient in compute dtype. This actor zeroes
// the padding, unless the host cannot access it; the borrower must write everything else.
// GradientReady returns the slot. Then the slices of all ranks are reduced into the accumulator,
// which is overwritten at a step's first micro-step and added to afterwards. At the last micro-step
// the reply has the norm's exact sum of squares and the first bad element.
//
// States: empty -> slot lent -> reducing -> empty. One slot per unit at a time.
// Invariant: between the last micro-step's reply and the next step's first GradientReady the
// accumulator holds the step's whole gradient, not averaged: the update's gradient_scale divides by
// ranks, micro-steps and loss scale.
//
// Buffers: the slot belongs to the borrower from the reply of AcquireGradient to GradientReady,
// then to Collectives. The accumulator belongs to this actor (Collectives writes it) until the last
// micro-step's reply, then to CpuOptimizer until the unit's ParamReady. The next step cannot write
// it earlier, because its backward visit needs the version of that ParamReady.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "actors/collectives/collectives.hpp"
#include "actors/slot_pool.hpp"
#include "actors/unit_layout.hpp"
#include "runtime/actor.hpp"

namespace tandem {

using ReducedGradient = GradientNorm;

/// Replies with memory for padded_elements of the bucket's block type for each block, lent until
/// GradientReady. `ticket` is a ticket of the gradients' slot pool.
struct AcquireGradient {
  using Reply = Placed<std::byte>;
  std::uint64_t ticket = 0;
};

/// Returns the filled slot. `order` is the number in Collectives of the first block's reduction;
/// the other blocks have the next numbers. Replies when the accumulator has the result and the slot
/// is free. The norm in the reply is valid after the last micro-step. Bad elements are indices into
/// the unit.
struct GradientReady {
  using Reply = ReducedGradient;
  bool first_micro_step = true;
  bool last_micro_step = true;
  std::uint64_t order = 0;
};

using GradientBucketAddress = Address<AcquireGradient, GradientReady>;

class GradientBucket : public Actor<GradientBucket, AcquireGradient, GradientReady> {
 public:
  struct Options {
    Name name = "bucket";
    std::uint32_t unit = flight::kNoUnit;
    UnitLayout layout;  // of one block, among the ranks that reduce it
    // The slot has this number of such blocks, one after another. They are added in this order.
    std::uint32_t blocks = 1;
    std::size_t first_element = 0;  // of the accumulator, in the numbering of bad elements
    // true: every rank keeps the whole gradient (then there is one slice)
    bool accumulate_replicated = false;
    DType block_type = DType::kF32;  // of the slot
    std::uint32_t tree = 1;          // ReduceArguments::tree
    Placed<void> accumulator;  // layout.shard_elements of accumulator_type; outlives the actor
    // At world 1 with one micro-step per step it may be the block's 16-bit type, because nothing is
    // added. The values, and so all later bits, are the same, and the update moves 30 instead of 36
    // bytes per element.
    DType accumulator_type = DType::kF32;
    SlotPoolAddress slots;
    CollectivesAddress collectives;
    bool clears_padding = true;  // false: the slot is on a device, and the borrower clears it
  };

  struct Counters {
    std::uint64_t reductions = 0;
    double slot_waiting_s = 0;
    double reduce_waiting_s = 0;  // with the wait for its turn
  };

  explicit GradientBucket(Options options);

  Task<Placed<std::byte>> handle(AcquireGradient request);
  Task<ReducedGradient> handle(GradientReady ready);

  /// Loop thread.
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  Task<GradientNorm> reduce(std::uint64_t order, ReduceArguments arguments);

  Options options_;
  Placed<std::byte> slot_;  // while lent
  std::uint64_t ticket_ = 0;
  Counters counters_;
};

}  // namespace tandem
