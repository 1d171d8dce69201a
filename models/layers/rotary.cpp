#include "models/layers/rotary.hpp"

#include <cmath>

namespace tandem {

RotaryTable::RotaryTable(double theta, std::int64_t dim) : dim_(dim) {
  for (std::int64_t i = 0; i < dim; i += 2) {
    const double power = std::pow(theta, static_cast<double>(i) / static_cast<double>(dim));
    frequencies_.push_back(1.0F / static_cast<float>(power));
  }
}

RotaryTable::View RotaryTable::for_length(std::int64_t length) {
  const std::size_t half = frequencies_.size();
  for (std::size_t p = cosine_.size() / half; p < static_cast<std::size_t>(length); ++p) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(p) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      sine_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
  return {cosine_.data(), sine_.data()};
}

}  // namespace tandem
