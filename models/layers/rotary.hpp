// models/layers/rotary.hpp — cosines and sines of rotary positions, fp32, for as many positions as were ever asked for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tandem {

/// Angles p * theta^(-2i/dim) (Su et al., 2021), multiplied in fp32 as Transformers does. Compute lane only.
class RotaryTable {
 public:
  /// `dim`: elements of a head that are rotated, even.
  RotaryTable(double theta, std::int64_t dim);

  [[nodiscard]] std::int64_t dim() const { return dim_; }
  /// [length][dim / 2] each; pointers stay valid until a longer table is asked for.
  struct View {
    const float* cosine;
    const float* sine;
  };
  View for_length(std::int64_t length);
  /// The same as two tensors [length, dim / 2] on a device, where they stay: the copy waits for the device, once.
  std::pair<at::Tensor, at::Tensor> tensors(std::int64_t length, at::Device device);

 private:
  std::int64_t dim_;
  std::vector<float> frequencies_;
  std::vector<float> cosine_, sine_;
  at::Tensor cosine_there_, sine_there_;
};

}  // namespace tandem
