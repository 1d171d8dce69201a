// models/kernels/gemm_bf16.cpp — which of the two bf16 kernels runs here.
#include "models/kernels/gemm_bf16.hpp"

#include "runtime/util/check.hpp"

namespace tandem {

bool gemm_bf16_available() { return has_bf16_tiles() || has_bf16_vectors(); }

void gemm_bf16(const GemmProblem& problem) {
  TANDEM_CHECK(gemm_bf16_available(), "the caller asks before it chooses this kernel");
  (has_bf16_tiles() ? gemm_bf16_tiles : gemm_bf16_vectors)(problem);
}

}  // namespace tandem
