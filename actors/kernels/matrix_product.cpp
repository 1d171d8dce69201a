// actors/kernels/matrix_product.cpp — compiled once per SIMD target (foreach_target).
//
// For a tile, its rows of A and its columns of B are packed, a block of K at a time, so that the
// inner loop reads both front to back. The tile's sums wait in C from one block of K to the next.
#include "actors/kernels/matrix_product.hpp"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/matrix_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef TANDEM_ACTORS_KERNELS_MATRIX_PRODUCT
#define TANDEM_ACTORS_KERNELS_MATRIX_PRODUCT
namespace tandem {
namespace {
// A multiple of every target's micro-tile; both packed operands fit into a thread's stack and its
// second-level cache.
constexpr std::size_t kTile = 96;
constexpr std::size_t kDepthBlock = 128;

std::size_t tiles_along(std::size_t extent) { return (extent + kTile - 1) / kTile; }
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
constexpr std::size_t kLanes = hn::MaxLanes(F32());
constexpr std::size_t kColumns = 2 * kLanes;  // of a micro-tile
constexpr std::size_t kRows = 6;
static_assert(kTile % kRows == 0 && kTile % kColumns == 0, "tiles are whole micro-tiles");

/// packed[sliver][k][i] = from[(sliver * kWidth + i) * row_stride + k * depth_stride], zero beyond
/// `count`.
template <std::size_t kWidth>
void pack(const float* from, std::size_t row_stride, std::size_t depth_stride, std::size_t count,
          std::size_t depth, float* packed) {
  for (std::size_t first = 0; first < count; first += kWidth) {
    const std::size_t there = std::min(kWidth, count - first);
    for (std::size_t k = 0; k < depth; ++k) {
      for (std::size_t i = 0; i < kWidth; ++i) {
        *packed++ = i < there ? from[(first + i) * row_stride + k * depth_stride] : 0.0F;
      }
    }
  }
}

/// sums [kRows, kColumns] += a [depth, kRows]^T b [depth, kColumns]
HWY_INLINE void matmul_micro_tile(const float* a, const float* b, std::size_t depth, float* sums) {
  const F32 d;
  hn::Vec<F32> c[kRows][2];
#pragma clang loop unroll(full)
  for (std::size_t i = 0; i < kRows; ++i) {
    c[i][0] = hn::LoadU(d, sums + i * kColumns);
    c[i][1] = hn::LoadU(d, sums + i * kColumns + kLanes);
  }
  for (std::size_t k = 0; k < depth; ++k) {
    const auto b0 = hn::LoadU(d, b + k * kColumns);
    const auto b1 = hn::LoadU(d, b + k * kColumns + kLanes);
#pragma clang loop unroll(full)
    for (std::size_t i = 0; i < kRows; ++i) {
      const auto x = hn::Set(d, a[k * kRows + i]);
      c[i][0] = hn::MulAdd(x, b0, c[i][0]);
      c[i][1] = hn::MulAdd(x, b1, c[i][1]);
    }
  }
#pragma clang loop unroll(full)
  for (std::size_t i = 0; i < kRows; ++i) {
    hn::StoreU(c[i][0], d, sums + i * kColumns);
    hn::StoreU(c[i][1], d, sums + i * kColumns + kLanes);
  }
}

void product_tile(const MatrixProduct& p, std::size_t tile) {
  const std::size_t row = tile / tiles_along(p.columns) * kTile;
  const std::size_t column = tile % tiles_along(p.columns) * kTile;
  const std::size_t rows = std::min(kTile, p.rows - row);
  const std::size_t columns = std::min(kTile, p.columns - column);
  alignas(64) float a[kTile * kDepthBlock];
  alignas(64) float b[kTile * kDepthBlock];
  alignas(64) float sums[kTile * kTile] = {};  // [row sliver][column sliver][kRows][kColumns]
  constexpr std::size_t kAcross = kTile / kColumns;
  for (std::size_t k = 0; k < p.depth; k += kDepthBlock) {
    const std::size_t depth = std::min(kDepthBlock, p.depth - k);
    pack<kRows>(p.a + row * p.depth + k, p.depth, 1, rows, depth, a);
    if (p.b_across) {
      pack<kColumns>(p.b + column * p.depth + k, p.depth, 1, columns, depth, b);
    } else {
      pack<kColumns>(p.b + k * p.columns + column, 1, p.columns, columns, depth, b);
    }
    for (std::size_t i = 0; i * kRows < rows; ++i) {
      for (std::size_t j = 0; j * kColumns < columns; ++j) {
        matmul_micro_tile(a + i * kRows * depth, b + j * kColumns * depth, depth,
                          sums + (i * kAcross + j) * kRows * kColumns);
      }
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      const std::size_t at = (row + i) * p.columns + column + j;
      const float sum = sums[(i / kRows * kAcross + j / kColumns) * kRows * kColumns +
                             i % kRows * kColumns + j % kColumns];
      const float scaled = p.alpha * sum;
      p.c[at] = p.d == nullptr ? scaled : scaled + p.beta * p.d[at];
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(product_tile);

std::size_t product_tiles(const MatrixProduct& product) noexcept {
  return tiles_along(product.rows) * tiles_along(product.columns);
}

void compute_product_tile(const MatrixProduct& product, std::size_t tile) {
  HWY_DYNAMIC_DISPATCH(product_tile)(product, tile);
}

}  // namespace tandem
#endif
