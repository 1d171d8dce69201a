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

  /// x: [*, width]; only the rows in `index` (int64 [rows]) if given. -> [rows, width]
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& index = {}) const;
  /// dx (rows of `index`) = norm'(dy) + residual, and the gradients of weight and bias. dx may be
  /// dy or x-shaped memory of its own; with an index the other rows of dx are left alone.
  void backward(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& residual,
                const at::Tensor& dx, const at::Tensor& index = {}) const;

 private:
  [[nodiscard]] NormRows rows(const at::Tensor& x, const at::Tensor& index) const;
};

}  // namespace tandem
