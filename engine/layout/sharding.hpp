// engine/layout/sharding.hpp — what a rank keeps of each unit at a ZeRO stage. No other file
// depends on the stage's number.
//
//   stage  weights                gradient blocks        accumulators, master, moments
//   0      whole, all the time    one slot for each unit  whole, the same on every rank
//   1      whole, all the time    one slot for each unit  this rank's slice
//   2      whole, all the time    a few shared slots      this rank's slice
//   3      gathered into slots    a few shared slots      this rank's slice
//
// All stages share one mechanism: a unit is gathered when a visit needs a newer version than the
// rank has, its gradient is reduced after each micro-step, and each rank updates what it keeps. At
// stage 3 small units stay replicated, too (stage3_param_persistence_threshold), because a gather
// of few bytes costs as much as a gather of many; so do units with UnitSpec::stays_gathered. Units
// whose experts are spread over ranks (ep_size > 1) are sharded as at stage 3, at every stage: a
// rank keeps a slice of its expert slice, and a gather completes the expert slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/unit_layout.hpp"
#include "engine/types/model.hpp"

namespace tandem {

struct ZeroConfig;

/// Returns the expert-parallel size of the model's units; 1 if no experts are spread. Throws
/// user_error if sizes differ between units, or do not divide the experts or the ranks.
[[nodiscard]] std::int64_t require_ep_size(const Model& model, std::int64_t world_size);

struct Sharding {
  // By the stage: gradients and optimizer state are this rank's slice only.
  bool state_sharded = true;
  bool gradient_slot_of_own = false;     // for each unit, so that backward never waits for one
  std::vector<bool> weights_replicated;  // [unit] whether its weights stay gathered
  std::uint32_t world = 1;
  std::uint32_t rank = 0;

  static Sharding of(const Model& model, const ZeroConfig& zero, std::uint32_t world,
                     std::uint32_t rank);

  /// Whether the unit is sharded, by the stage or because its experts are spread.
  [[nodiscard]] bool is_sharded(const UnitSpec& unit) const noexcept {
    return state_sharded || unit.ep_size > 1;
  }
  /// Returns how the unit is divided into the slices of all ranks.
  [[nodiscard]] UnitLayout layout_of(const UnitSpec& unit) const;
  /// Returns the number of this rank's slice of the unit.
  [[nodiscard]] std::uint32_t slice(const UnitSpec& unit) const noexcept {
    return is_sharded(unit) ? rank : 0;
  }
  /// Returns the layout of a gathered block: the whole unit, or the experts that this rank
  /// computes.
  [[nodiscard]] UnitLayout gathered_layout_of(const UnitSpec& unit) const;
};

/// Returns the distance from one expert's run to the next, in elements.
[[nodiscard]] std::int64_t expert_stride(const UnitSpec& unit);

}  // namespace tandem
