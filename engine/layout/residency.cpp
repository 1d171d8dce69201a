#include "engine/layout/residency.hpp"

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

std::int64_t require_parts(const Model& model, std::int64_t world_size) {
  std::int64_t parts = 1;
  for (const UnitSpec& unit : model.units) {
    if (unit.parts == 1) {
      continue;
    }
    if (parts > 1 && unit.parts != parts) {
      throw user_error("engine",
                       "unit {} is spread over {} ranks and another one over {}; use one number",
                       unit.name, unit.parts, parts);
    }
    parts = unit.parts;
    if (parts < 1 || unit.experts % parts != 0) {
      throw user_error(
          "engine",
          "the {} experts of unit {} cannot be divided among {} ranks alike; use a divisor",
          unit.experts, unit.name, parts);
    }
  }
  if (world_size % parts != 0) {
    throw user_error("engine",
                     "experts are spread over {} ranks, and {} take part; use a divisor of that",
                     parts, world_size);
  }
  return parts;
}

Residency Residency::of(const Model& model, const ZeroConfig& zero, std::uint32_t world,
                        std::uint32_t rank) {
  (void)require_parts(model, world);
  Residency residency{.divided = zero.stage > 0,
                      .gradient_slot_of_own = zero.stage < 2,
                      .world = world,
                      .rank = rank};
  std::int64_t persistent = 0;  // elements, all units together
  for (const UnitSpec& unit : model.units) {
    const std::int64_t elements = unit.numel();
    const bool small = elements <= zero.param_persistence_threshold &&
                       persistent + elements <= zero.model_persistence_threshold;
    persistent += small ? elements : 0;
    residency.whole.push_back((zero.stage < 3 || small) && unit.parts == 1);
  }
  return residency;
}

namespace {
std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}
}  // namespace

std::int64_t expert_stride(const UnitSpec& unit) {
  const auto run = static_cast<std::size_t>(unit.numel() / unit.experts);
  return static_cast<std::int64_t>(unit.experts == 1 ? run : round_up(run, kUnitAlignment));
}

UnitLayout Residency::layout_of(const UnitSpec& unit) const {
  const UnitLayout part = gathered_layout_of(unit);
  const auto parts = static_cast<std::size_t>(unit.parts);
  return {.elements = part.padded_elements * (parts - 1) + part.elements,
          .padded_elements = part.padded_elements * parts,
          .shard_elements = part.shard_elements,
          .world = part.world * static_cast<std::uint32_t>(parts)};
}

UnitLayout Residency::gathered_layout_of(const UnitSpec& unit) const {
  const std::int64_t runs = unit.experts / unit.parts;
  const std::int64_t stride = expert_stride(unit);
  const std::int64_t last = unit.numel() / unit.experts;
  return UnitLayout::make(static_cast<std::size_t>((runs - 1) * stride + last),
                          divides(unit) ? world / static_cast<std::uint32_t>(unit.parts) : 1);
}

}  // namespace tandem
