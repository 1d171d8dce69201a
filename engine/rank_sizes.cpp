#include "engine/rank_sizes.hpp"

#include <algorithm>

#include "engine/step_plan.hpp"
#include "runtime/machine.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kGradientSlots = 2;  // one being filled, one being reduced

UnitSizes sizes_of(const UnitSpec& unit, const UnitLayout& layout, bool whole,
                   const RankShape& shape, DType accumulator_type) {
  const std::size_t elements = layout.shard_elements;
  const std::size_t floats = elements * sizeof(float);
  UnitSizes sizes{.weights = (whole ? layout.padded_elements : elements) * bytes_of(shape.type)};
  if (unit.frozen()) {
    sizes.state.master = shape.type == DType::kF32 ? 0 : floats;
    return sizes;
  }
  sizes.state = state_sizes(shape.layout, shape.update, shape.type, elements);
  sizes.accumulator = elements * bytes_of(accumulator_type);
  // The next master, or the one before where it is the weight; of a split one also the weight's half.
  const bool is_half = shape.layout != StateLayout::kFp32 && shape.type != DType::kF32;
  sizes.twin = sizes.moments() + (shape.type == DType::kF32 ? floats : sizes.state.master) +
               (is_half ? elements * bytes_of(shape.type) : 0);
  return sizes;
}

std::size_t gather_slots_of(const SlotPools& weights, int asked) {
  const auto slots = static_cast<std::size_t>(std::max(asked, 0));
  if (slots > 0 && slots < weights.min_shared_slots) {
    throw user_error(
        "engine",
        "gather_slots is {}, and a segment of this model holds {} units at a time; use "
        "at least {}",
        asked, weights.min_shared_slots, weights.min_shared_slots);
  }
  // Chosen: what one segment holds, and as much again gathered ahead of it.
  return std::min(slots > 0 ? slots : 2 * weights.min_shared_slots + 1, weights.shared_units());
}

std::vector<PoolSizes> sizes_of(const SlotPools& pools, std::size_t shared_slots, DType type) {
  std::vector<PoolSizes> sizes;
  for (std::size_t pool = 0; pool < pools.pools(); ++pool) {
    sizes.push_back({.slots = pool == 0 ? shared_slots : 1,
                     .slot_bytes = pools.slot_elements[pool] * bytes_of(type)});
  }
  return sizes;
}

std::vector<std::size_t> twins_of(const Model& model, const RankShape& shape,
                                  const SlotClasses& classes, const std::vector<UnitSizes>& units) {
  std::vector<std::size_t> twins;
  if (shape.twins.units == 0) {
    return twins;
  }
  const StepPlan plan = StepPlan::training(model, classes, 1);
  std::size_t bytes = 0;
  for (std::size_t v = 0; v + 1 < plan.visits.size(); ++v) {
    for (const UnitUse& use : plan.visits[v].uses) {
      const std::size_t more = units[use.unit].twin;
      if (use.last_gradient && twins.size() < shape.twins.units &&
          bytes + more <= shape.twins.bytes) {
        bytes += more;
        twins.push_back(use.unit);
      }
    }
  }
  return twins;
}

}  // namespace

TwinRoom TwinRoom::of(const EngineOptions& options, std::int64_t world_size) {
  if (options.overlap != Overlap::kFull || options.speculate == Speculate::kOff) {
    return {};
  }
  if (options.inflight_buckets > 0) {
    return {.units = static_cast<std::size_t>(options.inflight_buckets), .bytes = SIZE_MAX};
  }
  return {.units = SIZE_MAX,
          .bytes = machine::memory_available_bytes() / 4 / static_cast<std::uint64_t>(world_size)};
}

RankSizes RankSizes::of(const Model& model, const RankShape& shape, const Residency& residency,
                        const SlotClasses& classes) {
  RankSizes sizes;
  sizes.accumulator_type =
      shape.micro_steps == 1 && residency.world == 1 ? shape.type : DType::kF32;
  sizes.accumulators_shared = !residency.divided;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    sizes.units.push_back(sizes_of(model.units[unit],
                                   residency.layout_of(model.units[unit].numel()),
                                   residency.whole[unit], shape, sizes.accumulator_type));
  }
  sizes.twins = twins_of(model, shape, classes, sizes.units);
  const SlotPools& gradients = classes.gradients;
  sizes.gather_slots = gather_slots_of(classes.weights, shape.gather_slots);
  sizes.weight_pools = sizes_of(classes.weights, sizes.gather_slots, shape.type);
  sizes.gradient_pools = sizes_of(
      gradients,
      std::min(gradients.shared_units(), std::max(kGradientSlots, gradients.min_shared_slots + 1)),
      shape.type);
  return sizes;
}

}  // namespace tandem
