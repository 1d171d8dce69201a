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

/// The way into attention: x: [rows, in] -> {Linear(Norm(x)) [rows, out], x again}. The residual
/// path goes on from the returned x: its gradient then meets that of the norm inside this layer's
/// backward, which saves the pass that would add them. Kept for the backward: x alone.
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, Norm norm, LinearWeights linear);

/// The way out of it: [rows, in], [rows, out] -> residual + Linear(x). `residual` may be undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& residual, LinearWeights weights);

struct MlpWeights {
  Norm norm;
  LinearWeights up;
  Activation activation = Activation::kSwiGlu;
  LinearWeights down;
};

/// The use of an MLP's output.
enum class MlpSum : std::uint8_t {
  kAdded,  // x + Down(a(Up(Norm(x)))) is the segment's result: a recomputation leaves it unmade
  kGiven,  // without x; what follows needs its values in a recomputation, too
};

/// x: [rows, width] -> {what `sum` says, x again}; with kAdded there is no second one. Kept for the
/// backward: x and what Up gives; in a recomputation x alone, and the backward computes Up again.
std::pair<at::Tensor, at::Tensor> mlp(const at::Tensor& x, MlpWeights weights, MlpSum sum);

}  // namespace tandem
