// models/layers/gemm.hpp — matmuls of tensors: our own kernels, or a library's to compare with.
//
// Invariant: ours run unless select_gemm() says otherwise (tests, benchmarks), so that every run on
// one machine has the same bits. Compute lane only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "actors/kernels/dtype.hpp"

namespace tandem {

DType dtype_of(const at::Tensor& tensor);  // fp32, bf16 or fp16

enum class GemmProvider : std::uint8_t {
  kOwn,     // models/kernels/gemm.hpp
  kAten,    // at::mm: MKL in fp32, oneDNN in bf16
  kOneDnn,  // oneDNN in fp32 as well, through the dispatcher
};

/// Selects "auto" (our own), "own", "aten" or "onednn" for everything from now on; throws
/// user_error for any other choice. If oneDNN has no bf16 for the processor, "onednn" leaves bf16
/// to "auto".
void select_gemm(std::string_view choice);
/// Returns the choice in one line: "fp32 nt=own nn=aten tn=aten, bf16 ...".
std::string describe_gemm();

/// Returns the bytes of memory that the calling thread keeps permanently for a packed right operand
/// of `elements` elements: our own kernels keep it, the libraries do not. For the memory plan; any
/// thread before the first matmul.
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
