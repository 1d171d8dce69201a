// models/layers/linear.hpp — the way out of each half of a block: residual + Linear(x), or +
// Linear(activation(x)).
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/activation.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

/// [rows, in], [rows, out] -> residual + Linear(x). `residual` may be undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& residual, LinearWeights weights);

/// The same of a(x), x: [rows, in * inputs_per_output(a)]. Keeps x only, and its backward
/// overwrites x with its gradient: no other operation may need x afterwards.
at::Tensor activated_linear(Activation activation, const at::Tensor& x, const at::Tensor& residual,
                            LinearWeights weights);

}  // namespace tandem
