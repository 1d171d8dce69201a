#include "engine/memory/saved_parameters.hpp"

#include <algorithm>

#include "engine/types/capped.hpp"

namespace tandem {

std::int64_t saved_parameters(const Model& model) {
  const bool adapters = std::ranges::any_of(model.units, &UnitSpec::stays_gathered);
  std::int64_t count = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      count = sum_capped(count, adapters && parameter.frozen ? 0 : parameter.numel());
    }
  }
  return count;
}

}  // namespace tandem
