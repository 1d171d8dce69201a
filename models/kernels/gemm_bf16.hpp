// models/kernels/gemm_bf16.hpp — the two kernels behind gemm_bf16(): tiles and vectors.
#pragma once

#include "models/kernels/gemm.hpp"

namespace tandem {

/// Whether AMX-BF16 is there, and the kernel grants its use.
bool has_bf16_tiles();
/// Whether AVX512-BF16 is there.
bool has_bf16_vectors();
/// Whether AVX512-BF16 is there and quicker than fp32's arithmetic.
bool prefers_bf16_vectors();

/// gemm_bf16() by AMX tiles, or by AVX512-BF16. The caller asks first whether they are there.
void gemm_bf16_tiles(const GemmProblem& problem);
void gemm_bf16_vectors(const GemmProblem& problem);

}  // namespace tandem
