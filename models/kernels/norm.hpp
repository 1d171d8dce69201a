// models/kernels/norm.hpp — RMSNorm and LayerNorm over rows, forward and backward, in fp32 inside.
//
// RMSNorm (Zhang and Sennrich, 2019): y = w x / sqrt(mean(x^2) + eps); Gemma's has 1 + w for w.
// LayerNorm (Ba et al., 2016) subtracts the mean first and adds a bias. The backward computes the
// statistics again: it reads the row anyway.
// Invariant: the gradient of the weight is summed in blocks of rows at fixed places, so its bits
// don't depend on threads.
#pragma once

#include <cstdint>

#include "actors/kernels/dtype.hpp"

namespace tandem {

enum class NormKind : std::uint8_t { kRms, kRmsAroundOne, kLayer };

struct NormRows {
  NormKind kind = NormKind::kRms;
  DType type = DType::kF32;  // of every tensor here but the weight gradients
  double eps = 1e-6;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* x = nullptr;              // [*, width]
  const std::int64_t* index = nullptr;  // row r of the output belongs to row index[r] of x; null: r
  const void* weight = nullptr;         // [width]
  const void* bias = nullptr;           // [width], LayerNorm only
};

/// y: [rows, width], plus `residual[r]` if given.
void norm_forward(const NormRows& rows, void* y, const void* residual = nullptr);

/// dx[index[r]] = d(norm)/dx of dy[r], plus `residual[index[r]]` if given. dweight and dbias
/// (LayerNorm): fp32 [width], overwritten. Rows of dx outside `index` are left alone. dx may be the
/// memory of x or of dy.
void norm_backward(const NormRows& rows, const void* dy, const void* residual, void* dx,
                   float* dweight, float* dbias);

/// sums[j] = sum over rows of x[r][j], fp32 inside; blocks of rows at fixed places.
void column_sums(const void* x, DType type, std::int64_t rows, std::int64_t width, float* sums);

}  // namespace tandem
