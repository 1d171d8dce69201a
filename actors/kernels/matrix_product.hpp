// actors/kernels/matrix_product.hpp — multiplies fp32 matrices, tile by tile; the order of
// additions depends only on the shapes.
//
//   C = alpha * A B + beta * D       or, with b_across, alpha * A B^T + beta * D
//
// All matrices are row-major and dense. An element is computed by one chain of fused multiply-adds
// along K, which starts at 0; then alpha and beta are applied. So its bits depend neither on its
// tile nor on the thread, but, like a GEMM's, on whether the processor has fused multiply-adds. It
// serves small work that must be the same everywhere (orthogonalize.hpp); the layers' GEMMs are in
// models/kernels.
#pragma once

#include <cstddef>

namespace tandem {

struct MatrixProduct {
  const float* a = nullptr;  // [rows, depth]
  const float* b = nullptr;  // [depth, columns]; b_across: [columns, depth]
  const float* d = nullptr;  // [rows, columns]; null: beta is 0
  float* c = nullptr;        // [rows, columns], not overlapping the others
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t depth = 0;
  bool b_across = false;
  float alpha = 1.0F;
  float beta = 0.0F;
};

[[nodiscard]] std::size_t product_tiles(const MatrixProduct& product) noexcept;

/// Computes one tile of C. Any thread; different tiles may run at the same time.
void compute_product_tile(const MatrixProduct& product, std::size_t tile);

}  // namespace tandem
