// models/layers/norm_linear.hpp — the way into each half of a block: y = Linear(Norm(x)), and x
// past it.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "models/layers/norm.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

/// x: [rows, in] -> {y [rows, out], x again}. The residual path goes on from the returned x: its
/// gradient then meets that of the norm inside this layer's backward, which saves the pass that
/// would add them. Kept for the backward: x alone.
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, Norm norm, LinearWeights linear);

}  // namespace tandem
