// models/kernels/gemm.hpp — our own matmul on the CPU: C = start + A B.
//
// fp32 with vector FMAs (any SIMD target), bf16 with AMX tiles or AVX512-BF16's dot products where
// the processor has them. All pack their operands, so any transposition costs the same, write
// straight into the place where the result is wanted, and start from a residual or a bias instead
// of zero, which saves the pass that would add it. Invariant: every element of C is summed in an
// order fixed by K alone: the bits depend neither on the number of threads nor on the other
// extents. If K is 0, C is the start.
#pragma once

#include <cstdint>
#include <span>

#include "actors/kernels/dtype.hpp"

namespace tandem {

/// Element (i, j) lies at data[i * row_stride + j * column_stride]; one of the strides is 1.
struct GemmOperand {
  const void* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
  DType type = DType::kF32;
};

/// The start of the sum.
enum class GemmStart : std::uint8_t {
  kZero,
  kResidual,  // C = initial + A B; initial may be C itself
  kBias,      // initial is one row of N elements
};

/// C is row-major with leading dimension ld; `initial` has the type of C.
struct GemmTarget {
  void* data;
  std::int64_t ld;
  DType type = DType::kF32;
  GemmStart start = GemmStart::kZero;
  const void* initial = nullptr;
  std::int64_t initial_ld = 0;
};

struct GemmProblem {
  std::int64_t m, n, k;
  GemmOperand a;  // [M, K]
  GemmOperand b;  // [K, N]
  GemmTarget c;   // [M, N]
};

/// fp32 arithmetic; operands of any type, in any mix. Threads of the team, or serial inside a task.
void gemm_f32(const GemmProblem& problem);

/// Whether gemm_bf16() can run here, and is quicker than gemm_f32(): with AMX-BF16, where the
/// kernel grants its use, or AVX512-BF16 of a processor whose dot products are no slower than
/// fp32's.
bool gemm_bf16_available();
/// A and B bf16, products summed in fp32, C fp32 or bf16.
void gemm_bf16(const GemmProblem& problem);

/// Computes all problems in one call by `matmul`, one of the two functions above. They are cut into
/// pieces of equal work that the team shares, whatever the matmuls' sizes. The bits are the same as
/// one by one. No problem may read what another one writes.
void gemm_grouped(std::span<const GemmProblem> problems, void (*matmul)(const GemmProblem&));

}  // namespace tandem
