// models/layers/norm.hpp — a norm as it is configured and bound to its weights.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "models/kernels/norm.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

struct Norm {
  NormKind kind = NormKind::kRms;
  double eps = 1e-6;
  JoinedWeights weight;
  JoinedWeights bias;  // LayerNorm

  /// Returns the norm [rows, width] of x [*, width], plus `residual` [rows, width] if given. If
  /// `index` (int64 [rows]) is given, only these rows of x are taken.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& index = {},
                                   const at::Tensor& residual = {}) const;
  /// The same into `y`.
  void forward_into(const at::Tensor& x, const at::Tensor& y, const at::Tensor& index = {},
                    const at::Tensor& residual = {}) const;
  /// Computes dx (rows of `index`) = norm'(dy) + residual, and the gradients of weight and bias. dx
  /// may be dy, x, or x-shaped memory of its own; with an index the other rows of dx are left
  /// alone.
  void backward(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& residual,
                const at::Tensor& dx, const at::Tensor& index = {}) const;

 private:
  [[nodiscard]] NormRows rows(const at::Tensor& x, const at::Tensor& index) const;
};

/// Returns residual + Norm(y), both [rows, width]: the end of a block's half that norms its output.
/// Keeps y; its backward overwrites y with the gradient, so no other operation may need y.
at::Tensor normed_sum(const at::Tensor& residual, const at::Tensor& y, Norm norm);

}  // namespace tandem
