#include "engine/types/model.hpp"

#include <algorithm>

#include "engine/types/capped.hpp"

namespace tandem {

std::int64_t ParameterSpec::numel() const noexcept {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) {
    n = product_capped(n, extent);
  }
  return n;
}

std::int64_t UnitSpec::numel() const noexcept {
  std::int64_t n = 0;
  for (const ParameterSpec& parameter : parameters) {
    n = sum_capped(n, parameter.numel());
  }
  return n;
}

bool UnitSpec::frozen() const noexcept {
  return std::ranges::all_of(parameters, &ParameterSpec::frozen);
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
