// engine/step/directions.hpp — the first half of a joint update (LAMB, Muon), in the step between
// the reductions of gradients and the updates.
//
//   LAMB   After the verdict: computes every unit's direction (CpuOptimizer, DirectUnit); adds the
//          exact sums of squares of weights and directions, tensor by tensor, over the ranks;
//          computes the trust ratios, and with them the constants of the updates.
//   Muon   Before the verdict, because DeepSpeed clips the orthogonalized directions. Unit by unit:
//          computes the direction; gathers the whole unit, or copies it; orthogonalizes each
//          matrix on one rank (the costliest first, on the rank with the least work so far); adds
//          the ranks' blocks, each of which is -0 where another rank has the result, into the
//          gradient's place. Then computes the norm of the directions and of the gradients that
//          AdamW takes.
// The second half is an ordinary update in the order of deadlines (train_step.cpp).
// Invariant: no number depends on the number of ranks, the stage, or what overlaps. All ranks issue
// the collectives in the same order.
// Buffers: directions lie in the gradients' accumulators.
// Cost: the step awaits the first half at every overlap setting. LAMB moves 28 of its 40 bytes per
// element in it. Muon computes MatrixShape::cost() multiplications per matrix, divided among the
// ranks within each unit. Beside the gather, the results travel as a unit's gradients do, in fp32.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/kernels/update/direction.hpp"
#include "engine/layout/muon_matrices.hpp"
#include "engine/layout/step_plan.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/gatherer.hpp"
#include "runtime/task.hpp"

namespace tandem {

class Directions {
 public:
  /// `order`: the units by the deadlines of their updates. `reductions`: the step's counters of
  /// reductions. `rank`, `gatherer` and `reductions` outlive this object.
  Directions(Rank& rank, Gatherer& gatherer, CommunicatorOrders& reductions,
             std::vector<std::uint32_t> order);

  [[nodiscard]] bool of_lamb() const noexcept { return kind_ == OptimizerKind::kLamb; }
  [[nodiscard]] bool of_muon() const noexcept { return kind_ == OptimizerKind::kMuon; }
  [[nodiscard]] bool of_any() const noexcept { return updates_jointly(kind_); }

  /// Computes the directions of all units and the constants of their updates; no update may be
  /// queued or running. `groups` are TrainStep::Update's; `gradient_scale` is unscale x clip.
  Task<> find_lamb(std::vector<UpdateConfig> groups, std::int64_t applied_step,
                   double gradient_scale);
  /// Returns the constants of a unit's updates, [parameter], after find_lamb(); valid until the
  /// next find_lamb().
  [[nodiscard]] const UpdateStep* lamb_steps(std::size_t unit) const {
    return lamb_steps_[unit].data();
  }

  /// Computes the directions of all units under the same condition; `gradient_scale` is unscale
  /// alone. Returns the norm that clipping limits.
  Task<double> find_muon(std::vector<UpdateConfig> groups, double gradient_scale);

 private:
  /// One matrix of a unit, and the rank that works on it.
  struct Matrix {
    std::size_t offset = 0;  // in the unit's block
    MatrixShape shape;
    std::uint32_t owner = 0;
  };

  void deal_out_matrices();
  /// Overwrites with -0 the elements of the unit's block whose result another rank has.
  Task<> clear_others_part(std::size_t unit, float* block);
  Task<> direct(std::uint32_t unit, const DirectionStep* steps);
  Task<> orthogonalize_unit(std::size_t unit);
  Task<double> muon_norm(double gradient_scale);
  /// Replaces each sum of this rank by the sum over all ranks. Collective.
  Task<> add_over_ranks(std::vector<ExactSum>* sums);
  [[nodiscard]] bool is_divided(std::size_t unit) const {
    return layout_.sharding.world > 1 && layout_.sharding.is_sharded(layout_.model.units[unit]);
  }

  Rank& rank_;
  const RankLayout& layout_;
  Gatherer& gatherer_;
  CommunicatorOrders& reductions_;
  OptimizerKind kind_;
  std::vector<std::uint32_t> order_;                         // without frozen units
  std::vector<std::uint64_t> deadlines_;                     // [unit]
  std::vector<std::vector<UpdateRange>> ranges_;             // [unit]
  std::vector<Direction> directions_;                        // [unit]
  std::vector<std::vector<Matrix>> matrices_;                // [unit]
  std::vector<std::vector<DirectionStep>> direction_steps_;  // [unit][parameter] of LAMB
  std::vector<std::vector<UpdateStep>> lamb_steps_;          // [unit][parameter]
  std::vector<DirectionStep> muon_steps_;                    // [group]; lent to the optimizer
};

}  // namespace tandem
