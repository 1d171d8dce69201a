// engine/rank/rank_layout.hpp — what follows from a model and the options of a run before anything
// of a rank is allocated: how units are divided, which share slots, where each parameter lies, and
// how many bytes that takes.
//
// Invariant: constant once made, and the same on all ranks but for the number of the rank's slice.
// Any thread.
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
  /// `model_in` outlives it. Throws user_error when the slots or the state layout that the options
  /// ask for cannot work with the model.
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

  /// The first element of this rank's slice of a unit, in the unit's block.
  [[nodiscard]] std::size_t slice_begin(std::size_t unit) const;
  [[nodiscard]] std::size_t slice_elements(std::size_t unit) const {
    return parameters[unit].block.shard_elements;
  }
  /// Where that slice begins when the units are laid end to end, each from a state block's boundary
  /// on: stochastic rounding counts from there, whatever the number of ranks.
  [[nodiscard]] std::uint64_t first_element(std::size_t unit) const;
  /// Whether the optimizer keeps that array (kMasterArray and on) of the parameter.
  [[nodiscard]] bool has_array(const ParameterSpec& parameter, std::uint32_t array) const;
  /// The ranges of that slice that the optimizer writes: neither padding nor frozen parameters.
  /// Their groups are the parameters'; LAMB's are the parameter's number in the unit, Muon's are
  /// muon_group()'s. Throws user_error when one of them does not begin where the state layout can
  /// begin.
  [[nodiscard]] std::vector<CpuOptimizer::Range> update_ranges(std::size_t unit) const;

  /// Options of a unit's actors; memory, slots and collectives are still to be given.
  [[nodiscard]] ParameterShard::Options shard_options(std::size_t unit) const;
  [[nodiscard]] GradientBucket::Options bucket_options(std::size_t unit) const;

  /// Where the padded block of a unit begins when the blocks of all units are laid end to end.
  [[nodiscard]] std::int64_t flat_begin(std::size_t unit) const;
  /// The name of the parameter at a position of that flat order.
  [[nodiscard]] std::string parameter_at_flat(std::int64_t position) const;
  /// Hands out the parameters of a unit, given the fp32 values of its whole block.
  void visit_parameters(
      std::size_t unit, std::span<const float> block,
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const;
};

}  // namespace tandem
