// engine/rank/rank_layout.hpp — how a rank's units are divided, which of them share slots, where
// each parameter lies, and how many bytes that takes; derived from a model and a run's options
// before anything is allocated.
//
// Invariant: constant once made; ranks differ only in the number of their slice. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "actors/gradient_bucket.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "actors/parameter_shard.hpp"
#include "engine/config/config.hpp"
#include "engine/layout/parameter_layout.hpp"
#include "engine/layout/rank_sizes.hpp"
#include "engine/layout/sharding.hpp"
#include "engine/layout/slot_classes.hpp"
#include "engine/types/model.hpp"

namespace tandem {

struct RankLayout {
  /// `model_in` outlives this object. Throws user_error if the model cannot run with the slots or
  /// the state layout of the options.
  RankLayout(const Model& model_in, RankShape shape_in, const ZeroConfig& zero, std::uint32_t world,
             std::uint32_t rank);

  const Model& model;
  RankShape shape;
  Sharding sharding;
  SlotClasses classes;
  RankSizes sizes;
  std::vector<ParameterLayout> parameters;  // [unit]

  /// Elements of all parameters of the model.
  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] StatePlacement placement_of(std::size_t unit) const {
    return sizes.units[unit].placement;
  }
  /// Whether the update of any unit touches the memory of an accelerator.
  [[nodiscard]] bool updates_on_device() const;

  /// Returns the position of this rank's slice of a unit in the unit's block, in elements.
  [[nodiscard]] std::size_t slice_begin(std::size_t unit) const;
  [[nodiscard]] std::size_t slice_elements(std::size_t unit) const {
    return parameters[unit].block.shard_elements;
  }
  /// Returns where that slice begins if the units lie end to end, each from a multiple of
  /// kScaleGroup on. Stochastic rounding counts from there, so its bits do not depend on the number
  /// of ranks.
  [[nodiscard]] std::uint64_t first_element(std::size_t unit) const;
  /// Whether the optimizer keeps that state array of the parameter: kMasterArray, or a moment after
  /// it.
  [[nodiscard]] bool has_array(const ParameterSpec& parameter, std::uint32_t array) const;
  /// Returns the ranges of that slice that the optimizer updates; padding and frozen parameters are
  /// in none. A range's group is its parameter's group; for LAMB it is the parameter's number in
  /// the unit, for Muon muon_group(). Throws user_error if a range begins where the state layout
  /// does not allow it (int8: within a scale group).
  [[nodiscard]] std::vector<CpuOptimizer::Range> update_ranges(std::size_t unit) const;

  /// Return the options of a unit's actors, except memory, slots and collectives, which the caller
  /// adds.
  [[nodiscard]] ParameterShard::Options shard_options(std::size_t unit) const;
  [[nodiscard]] GradientBucket::Options bucket_options(std::size_t unit) const;

  /// Returns where the padded block of a unit begins if the blocks of all units lie end to end.
  [[nodiscard]] std::int64_t flat_begin(std::size_t unit) const;
  /// Returns the name of the parameter at a position in that order.
  [[nodiscard]] std::string parameter_at_flat(std::int64_t position) const;
  /// Calls `visit` for each parameter of a unit; `block`: the fp32 values of the unit's whole
  /// block.
  void visit_parameters(
      std::size_t unit, std::span<const float> block,
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const;
};

}  // namespace tandem
