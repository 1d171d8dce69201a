#include "engine/layout/sharding.hpp"

#include "engine/config/config.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

std::int64_t require_ep_size(const Model& model, std::int64_t world_size) {
  std::int64_t ep_size = 1;
  for (const UnitSpec& unit : model.units) {
    if (unit.ep_size == 1) {
      continue;
    }
    if (ep_size > 1 && unit.ep_size != ep_size) {
      throw user_error("engine",
                       "unit {} is spread over {} ranks and another one over {}; use one number",
                       unit.name, unit.ep_size, ep_size);
    }
    ep_size = unit.ep_size;
    if (ep_size < 1 || unit.experts % ep_size != 0) {
      throw user_error(
          "engine",
          "the {} experts of unit {} cannot be divided among {} ranks alike; use a divisor",
          unit.experts, unit.name, ep_size);
    }
  }
  if (world_size % ep_size != 0) {
    throw user_error("engine",
                     "experts are spread over {} ranks, and {} take part; use a divisor of that",
                     ep_size, world_size);
  }
  return ep_size;
}

Sharding Sharding::of(const Model& model, const ZeroConfig& zero, std::uint32_t world,
                      std::uint32_t rank) {
  TANDEM_CHECK(rank < world, "a rank is one of the world's");
  (void)require_ep_size(model, world);
  Sharding sharding{.state_sharded = zero.stage > 0,
                    .gradient_slot_of_own = zero.stage < 2,
                    .world = world,
                    .rank = rank};
  std::int64_t persistent = 0;  // elements, all units together
  for (const UnitSpec& unit : model.units) {
    const std::int64_t elements = unit.numel();
    const bool small = elements <= zero.param_persistence_threshold &&
                       persistent + elements <= zero.model_persistence_threshold;
    const bool stays = zero.stage < 3 || unit.stays_gathered || small;
    persistent += small && !unit.stays_gathered ? elements : 0;
    sharding.weights_replicated.push_back(stays && unit.ep_size == 1);
  }
  return sharding;
}

std::int64_t expert_stride(const UnitSpec& unit) {
  const auto run = static_cast<std::size_t>(unit.numel() / unit.experts);
  return static_cast<std::int64_t>(unit.experts == 1 ? run : round_up(run, kUnitAlignment));
}

UnitLayout Sharding::layout_of(const UnitSpec& unit) const {
  const UnitLayout part = gathered_layout_of(unit);
  const auto ep_size = static_cast<std::size_t>(unit.ep_size);
  return {.elements = part.padded_elements * (ep_size - 1) + part.elements,
          .padded_elements = part.padded_elements * ep_size,
          .shard_elements = part.shard_elements,
          .world = part.world * static_cast<std::uint32_t>(ep_size)};
}

UnitLayout Sharding::gathered_layout_of(const UnitSpec& unit) const {
  const std::int64_t runs = unit.experts / unit.ep_size;
  const std::int64_t stride = expert_stride(unit);
  const std::int64_t last = unit.numel() / unit.experts;
  return UnitLayout::make(static_cast<std::size_t>((runs - 1) * stride + last),
                          is_sharded(unit) ? world / static_cast<std::uint32_t>(unit.ep_size) : 1);
}

}  // namespace tandem
