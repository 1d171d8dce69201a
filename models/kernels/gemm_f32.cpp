// models/kernels/gemm_f32.cpp — see gemm.hpp. Compiled once per SIMD target by Highway's foreach_target.
//
// B is packed once, by all threads, into panels [K block][sliver of kTileColumns][k][column]; a task packs the rows of A
// it works on into [sliver of kTileRows][k][row] and multiplies sliver by sliver, so that the inner loop reads both
// operands front to back: one panel sliver of B stays in the first-level cache while the slivers of A pass by.
#include <algorithm>
#include <cstring>

#include "models/kernels/gemm_blocks.hpp"
#include "models/kernels/scratch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/gemm_f32.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

#ifndef TANDEM_GEMM_F32_SCRATCH
#define TANDEM_GEMM_F32_SCRATCH
namespace tandem {
namespace {
thread_local Scratch packed_a_scratch;
thread_local Scratch packed_b_scratch;
constexpr std::int64_t kKBlockMax = 256;  // slivers of both operands fit into the first-level cache
constexpr std::int64_t kRowSliversPerTask = 16;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::CappedTag<float, 16>;
using F32x4 = hn::FixedTag<float, 4>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
constexpr int kTileColumns = 2 * kLanes;
// As many rows as leave registers for one row of B (two vectors) and one element of A.
constexpr int kTileRows = kLanes >= 16 ? 14 : 6;

/// out[k * kWidth + r] = source[r * ld + k] for `rows` <= kWidth rows; the rest becomes zero.
template <int kWidth, class T>
void pack_along_k(const T* source, std::int64_t ld, int rows, std::int64_t kc, float* out) {
  const F32x4 d;
  const hn::Repartition<double, F32x4> dd;
  std::int64_t k = 0;
  if (rows == kWidth) {
    for (; k + 4 <= kc; k += 4) {
      for (int step = 0; step < kWidth; step += 4) {
        const int r = std::min(step, kWidth - 4);  // the last block may overlap the one before
        const T* from = source + r * ld + k;
        const auto r0 = load_f32(d, from);
        const auto r1 = load_f32(d, from + ld);
        const auto r2 = load_f32(d, from + 2 * ld);
        const auto r3 = load_f32(d, from + 3 * ld);
        const auto a01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
        const auto a23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
        const auto b01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
        const auto b23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
        float* to = out + k * kWidth + r;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, a01, a23)), d, to);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, a01, a23)), d, to + kWidth);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, b01, b23)), d, to + 2 * kWidth);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, b01, b23)), d, to + 3 * kWidth);
      }
    }
  }
  const hn::FixedTag<float, 1> d1;
  for (; k < kc; ++k) {
    for (int r = 0; r < kWidth; ++r) {
      out[k * kWidth + r] = r < rows ? hn::GetLane(load_f32(d1, source + r * ld + k)) : 0.0F;
    }
  }
}

/// out[k * kWidth + r] = source[k * ld + r] for `rows` <= kWidth; the rest becomes zero. `readable`: elements that may be
/// read from each row of the source.
template <int kWidth, class T>
void pack_across_k(const T* source, std::int64_t ld, int rows, std::int64_t readable,
                   std::int64_t kc, float* out) {
  const F32 d;
  const hn::FixedTag<float, 1> d1;
  constexpr int kVectors = (kWidth + kLanes - 1) / kLanes;
  std::int64_t k = 0;
  if (readable >= kVectors * kLanes) {
    // Whole vectors; what they write too much is overwritten by the next row, so the last row is left to the exact loop.
    const std::int64_t whole = kWidth % kLanes == 0 ? kc : kc - 1;
    for (; k < whole; ++k, source += ld, out += kWidth) {
#pragma clang loop unroll(full)
      for (int v = 0; v < kVectors; ++v) {
        hn::StoreU(load_f32(d, source + v * kLanes), d, out + v * kLanes);
      }
    }
  }
  for (; k < kc; ++k, source += ld, out += kWidth) {
    for (int r = 0; r < kWidth; ++r) {
      out[r] = r < rows ? hn::GetLane(load_f32(d1, source + r)) : 0.0F;
    }
  }
}

/// Packs kWidth rows (of A, or columns of B) from `first`, elements [k0, k0 + kc) of each. `along` and `across`: strides
/// of the operand along K and from row to row.
template <int kWidth, class T>
void pack_typed(const T* data, std::int64_t along, std::int64_t across, std::int64_t first,
                std::int64_t last, std::int64_t k0, std::int64_t kc, float* out) {
  const int rows = static_cast<int>(std::min<std::int64_t>(kWidth, last - first));
  const T* source = data + first * across + k0 * along;
  if (along == 1) {
    pack_along_k<kWidth>(source, across, rows, kc, out);
  } else {
    pack_across_k<kWidth>(source, along, rows, last - first, kc, out);
  }
}

template <int kWidth>
void pack(const void* data, DType type, std::int64_t along, std::int64_t across, std::int64_t first,
          std::int64_t last, std::int64_t k0, std::int64_t kc, float* out) {
  with_element(type, [&](auto element) HWY_ATTR {
    pack_typed<kWidth>(static_cast<const decltype(element)*>(data), along, across, first, last, k0,
                       kc, out);
  });
}

/// Where one tile of C goes and what it starts from.
template <class T>
struct TileTarget {
  T* c;
  std::int64_t ld;
  const T* initial;  // null: zero
  std::int64_t initial_ld;
  int rows, columns;
};

template <class T>
HWY_INLINE void finish_partial(const float* sums, const TileTarget<T>& to) {
  const hn::FixedTag<float, 1> d1;
  for (int i = 0; i < to.rows; ++i) {
    for (int j = 0; j < to.columns; ++j) {
      auto value = hn::Set(d1, sums[i * kTileColumns + j]);
      if (to.initial != nullptr) {
        value = hn::Add(value, load_f32(d1, to.initial + i * to.initial_ld + j));
      }
      store_f32(d1, value, to.c + i * to.ld + j);
    }
  }
}

template <class T>
void tile(std::int64_t kc, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
          const float* ahead, const TileTarget<T>& to) {
  const F32 d;
  hn::Vec<F32> sum0[kTileRows];
  hn::Vec<F32> sum1[kTileRows];
#pragma clang loop unroll(full)
  for (int i = 0; i < kTileRows; ++i) {
    sum0[i] = hn::Zero(d);
    sum1[i] = hn::Zero(d);
  }
  // The tile of C is needed at the end; fetched here, it has arrived by then.
  for (int i = 0; i < to.rows; ++i) {
    const T* row = (to.initial != nullptr ? to.initial + i * to.initial_ld : to.c + i * to.ld);
    hwy::Prefetch(row);
    hwy::Prefetch(row + kLanes);
  }
  for (std::int64_t k = 0; k < kc; ++k) {
    hwy::Prefetch(ahead);
    hwy::Prefetch(ahead + kLanes);
    ahead += kTileColumns;
    const auto b0 = hn::Load(d, b);
    const auto b1 = hn::Load(d, b + kLanes);
#pragma clang loop unroll(full)
    for (int i = 0; i < kTileRows; ++i) {
      const auto ai = hn::Set(d, a[i]);
      sum0[i] = hn::MulAdd(ai, b0, sum0[i]);
      sum1[i] = hn::MulAdd(ai, b1, sum1[i]);
    }
    a += kTileRows;
    b += kTileColumns;
  }
  if (to.columns == kTileColumns) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kTileRows; ++i) {
      if (i < to.rows) {
        T* row = to.c + i * to.ld;
        if (to.initial != nullptr) {
          const T* start = to.initial + i * to.initial_ld;
          sum0[i] = hn::Add(sum0[i], load_f32(d, start));
          sum1[i] = hn::Add(sum1[i], load_f32(d, start + kLanes));
        }
        store_f32(d, sum0[i], row);
        store_f32(d, sum1[i], row + kLanes);
      }
    }
    return;
  }
  HWY_ALIGN float sums[kTileRows * kTileColumns];
#pragma clang loop unroll(full)
  for (int i = 0; i < kTileRows; ++i) {
    hn::Store(sum0[i], d, sums + i * kTileColumns);
    hn::Store(sum1[i], d, sums + i * kTileColumns + kLanes);
  }
  finish_partial(sums, to);
}

template <class T>
struct Product {
  const GemmProblem& p;
  GemmGrid grid;
  std::int64_t k_block;
  const float* packed_b;

  /// Panel of B for the K block that begins at k0, kc long.
  [[nodiscard]] std::int64_t panel(std::int64_t k0) const {
    return k0 * grid.column_tiles * kTileColumns;
  }

  void multiply(const GemmGrid::Part& part) const {
    const std::int64_t rows = part.row_end - part.row_begin;
    auto* packed_a =
        packed_a_scratch.get<float>(static_cast<std::size_t>(rows * kTileRows * k_block));
    std::int64_t k0 = 0;
    do {  // once where K is empty: C then becomes its start
      const std::int64_t kc = std::min(k_block, p.k - k0);
      pack_rows(part.row_begin, rows, k0, kc, packed_a);
      for (std::int64_t c = part.column_begin; c < part.column_end; ++c) {
        const float* b = packed_b + panel(k0) + c * kTileColumns * kc;
        for (std::int64_t r = 0; r < rows; ++r) {
          // While the last tile still reads this sliver of B, the next one is on its way.
          const float* ahead = r + 1 == rows ? b + kTileColumns * kc : b;
          tile<T>(kc, packed_a + r * kTileRows * kc, b, ahead,
                  target(part.row_begin + r, c, k0 == 0));
        }
      }
      k0 += k_block;
    } while (k0 < p.k);
  }

  /// Slivers of A from tile `first`. Where they lie across K, a few rows of K at a time for all of them: what is left of
  /// a cache line then goes into the next sliver while the line is still near.
  void pack_rows(std::int64_t first, std::int64_t rows, std::int64_t k0, std::int64_t kc,
                 float* packed_a) const {
    const std::int64_t step = p.a.column_stride == 1 ? kc : std::min<std::int64_t>(kc, 16);
    for (std::int64_t k = 0; k < kc; k += step) {
      for (std::int64_t r = 0; r < rows; ++r) {
        pack<kTileRows>(p.a.data, p.a.type, p.a.column_stride, p.a.row_stride,
                        (first + r) * kTileRows, p.m, k0 + k, std::min(step, kc - k),
                        packed_a + r * kTileRows * kc + k * kTileRows);
      }
    }
  }

  [[nodiscard]] TileTarget<T> target(std::int64_t row_tile, std::int64_t column_tile,
                                     bool first) const {
    const std::int64_t i = row_tile * kTileRows;
    const std::int64_t j = column_tile * kTileColumns;
    TileTarget<T> to{static_cast<T*>(p.c.data) + i * p.c.ld + j,
                     p.c.ld,
                     nullptr,
                     0,
                     static_cast<int>(std::min<std::int64_t>(kTileRows, p.m - i)),
                     static_cast<int>(std::min<std::int64_t>(kTileColumns, p.n - j))};
    if (!first) {
      to.initial = to.c;
      to.initial_ld = to.ld;
    } else if (p.c.start != GemmStart::kZero) {
      to.initial_ld = p.c.start == GemmStart::kBias ? 0 : p.c.initial_ld;
      to.initial = static_cast<const T*>(p.c.initial) + i * to.initial_ld + j;
    }
    return to;
  }
};

template <class T>
void gemm_typed(const GemmProblem& p) {
  // 16-bit results can't hold partial sums: their K is not cut.
  const std::int64_t blocks =
      sizeof(T) == 2 ? 1 : std::max<std::int64_t>(1, ceil_div(p.k, kKBlockMax));
  const std::int64_t k_block = std::max<std::int64_t>(1, ceil_div(p.k, blocks));
  const GemmGrid grid =
      GemmGrid::of(ceil_div(p.m, kTileRows), ceil_div(p.n, kTileColumns), kRowSliversPerTask);
  auto* packed_b = packed_b_scratch.get<float>(
      static_cast<std::size_t>(grid.column_tiles * kTileColumns * std::max<std::int64_t>(p.k, 1)));
  const Product<T> product{p, grid, k_block, packed_b};
  parallel_tasks(grid.column_tiles, [&](std::int64_t c) {
    for (std::int64_t k0 = 0; k0 < p.k; k0 += k_block) {
      const std::int64_t kc = std::min(k_block, p.k - k0);
      pack<kTileColumns>(p.b.data, p.b.type, p.b.row_stride, p.b.column_stride, c * kTileColumns,
                         p.n, k0, kc, packed_b + product.panel(k0) + c * kTileColumns * kc);
    }
  });
  parallel_tasks(grid.tasks(), [&](std::int64_t task) { product.multiply(grid.part(task)); });
}

void GemmF32(const GemmProblem& p) {
  with_element(p.c.type, [&](auto element) HWY_ATTR { gemm_typed<decltype(element)>(p); });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(GemmF32);
void gemm_f32(const GemmProblem& problem) { HWY_DYNAMIC_DISPATCH(GemmF32)(problem); }
}  // namespace tandem
#endif
