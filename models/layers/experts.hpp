// models/layers/experts.hpp — the MLP half of a layer with experts.
//
//   x + sum of w_e Expert_e(Norm(x)) over the experts of a token
// One operation from the block's middle to its end: norm, router, the tokens' rows by expert, two
// grouped matmuls with the activation between them, and back into the tokens' order. It keeps x,
// the rows before the activation, and the routes for the backward. Experts without tokens get a
// gradient of zero.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/kernels/activation.hpp"
#include "models/kernels/experts.hpp"
#include "models/layers/norm.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

/// How the experts' parameters lie in their unit.
enum class ExpertLayout : std::uint8_t {
  kApart,  // for each expert gate [width, hidden], up, down [hidden, width]: side by side
  // gate_up [experts, hidden, 2 width], its bias [experts, 2 width], down [experts, width, hidden],
  // its bias
  kStacked,
};

struct ExpertShape {
  std::int64_t count = 0;  // 0: the layer has one dense MLP
  std::int64_t per_token = 0;
  std::int64_t width = 0;  // of one expert, between its matrices
  bool normalised = true;  // RouterRule
  ExpertLayout layout = ExpertLayout::kApart;
  Activation activation = Activation::kSwiGlu;

  [[nodiscard]] RouterRule rule() const { return {count, per_token, normalised}; }
  /// Returns the elements of the experts' matrices with which a token is not multiplied.
  [[nodiscard]] std::int64_t idle_elements(std::int64_t hidden) const {
    return (count - per_token) * (inputs_per_output(activation) + 1) * width * hidden;
  }
  /// Returns the parameters of a layer's experts, in order, with these names: three for each
  /// expert, or four in all.
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const std::string> names,
                                                      std::int64_t hidden) const;
};

/// Returns the sum above for x [tokens, hidden]. `experts`: the weights of
/// ExpertShape::parameters().
at::Tensor expert_mixture(const at::Tensor& x, Norm norm, LinearWeights router,
                          std::span<Weight* const> experts, const ExpertShape& shape);

}  // namespace tandem
