#include "models/layers/rotary.hpp"

#include <cmath>

#include <ATen/ops/from_blob.h>

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

std::pair<at::Tensor, at::Tensor> RotaryTable::tensors(std::int64_t length, at::Device device) {
  if (!cosine_there_.defined() || cosine_there_.size(0) < length ||
      cosine_there_.device() != device) {
    const View view = for_length(length);
    const auto there = [&](const float* values) {
      return at::from_blob(const_cast<float*>(values), {length, dim_ / 2}, at::kFloat)
          .to(device, /*non_blocking=*/false, /*copy=*/true);
    };
    cosine_there_ = there(view.cosine);
    sine_there_ = there(view.sine);
  }
  return {cosine_there_.narrow(0, 0, length), sine_there_.narrow(0, 0, length)};
}

}  // namespace tandem
