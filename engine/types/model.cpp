#include "engine/types/model.hpp"

#include <algorithm>

namespace tandem {

std::vector<std::size_t> units_of(const SegmentSpec& segment) {
  std::vector<std::size_t> units;
  for (const WeightRef& weight : segment.weights) {
    units.push_back(weight.unit);
  }
  std::ranges::sort(units);
  const auto repeated = std::ranges::unique(units);
  units.erase(repeated.begin(), repeated.end());
  return units;
}

}  // namespace tandem
