#include "engine/types/model.hpp"

#include <algorithm>

namespace tandem {

at::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
  }
  return at::kFloat;
}

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
