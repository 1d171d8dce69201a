// models/layers/gemm.hpp — matmuls of tensors by our own kernels (models/kernels/gemm.hpp).
//
// Invariant: no measurement chooses between kernels, so every run on one machine has the same bits.
// Compute lane only.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "actors/kernels/dtype.hpp"

namespace tandem {

DType dtype_of(const at::Tensor& tensor);  // fp32, bf16 or fp16

/// Returns the bytes of memory that the calling thread keeps permanently for a packed right operand
/// of `elements` elements. For the memory plan; any thread.
[[nodiscard]] std::int64_t packed_bytes(DType type, std::int64_t elements);

enum class MatmulStart : std::uint8_t { kZero, kAccumulate, kFrom };

/// c = start + a b, where start is zero, c itself, or `from` ([M, N], or a row [N]). Matrices of
/// one type; c may be fp32 with 16-bit operands. One stride of a and of b is 1, rows of c and
/// `from` are contiguous. No autograd.
void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
            MatmulStart start = MatmulStart::kZero, const at::Tensor& from = {});

/// The operands of one matmul().
struct Matmul {
  at::Tensor c, a, b;
  MatmulStart start = MatmulStart::kZero;
  at::Tensor from = {};
};

/// Runs matmul() for each in one call, so that threads share small matmuls, too. All are of one
/// type; none reads what another one writes; extents may be zero (if K is, c becomes its start).
void grouped_matmul(std::span<const Matmul> matmuls);

}  // namespace tandem
