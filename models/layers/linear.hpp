// models/layers/linear.hpp — the linear layers of a transformer layer's halves, with their norms
// and activations.
//
// They compute token tile by token tile (token_tiles.hpp): outputs of norms and activations, and
// their gradients in backward, are in memory for one tile only.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "models/kernels/activation.hpp"
#include "models/layers/norm.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

/// The layer before attention: returns {Linear(Norm(x)) [rows, out], x} for x [rows, in]. The
/// residual path goes on from the returned x, so that this layer's backward adds its gradient to
/// the norm's, which saves a pass. Keeps x alone for the backward.
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, Norm norm, LinearWeights linear);

/// The layer behind attention: returns residual + Linear(x), [rows, out], for x [rows, in].
/// `residual` may be undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& residual, LinearWeights weights);

struct MlpWeights {
  Norm norm;
  LinearWeights up;
  Activation activation = Activation::kSwiGlu;
  LinearWeights down;
};

/// The use of an MLP's output.
enum class MlpSum : std::uint8_t {
  kAdded,  // x + Down(a(Up(Norm(x)))) is the segment's result: a recomputation does not make it
  kGiven,  // without x; later operations need its values in a recomputation, too
};

/// Returns {the output that `sum` describes, x} for x [rows, width]; with kAdded the second tensor
/// is undefined. Keeps x and Up's output for the backward; in a recomputation it keeps x alone, and
/// the backward computes Up again.
std::pair<at::Tensor, at::Tensor> mlp(const at::Tensor& x, MlpWeights weights, MlpSum sum);

}  // namespace tandem
