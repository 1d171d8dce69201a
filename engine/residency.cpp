#include "engine/residency.hpp"

#include "engine/config/config.hpp"

namespace tandem {

Residency Residency::of(const Model& model, const ZeroConfig& zero, std::uint32_t world,
                        std::uint32_t rank) {
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
    residency.whole.push_back(zero.stage < 3 || small);
  }
  return residency;
}

UnitLayout Residency::layout_of(std::int64_t elements) const {
  return UnitLayout::make(static_cast<std::size_t>(elements), divided ? world : 1);
}

}  // namespace tandem
