// models/kernels/gemm_f32.cpp — compiled once per SIMD target (foreach_target).
//
// B is packed once, by all threads, into panels [K block][sliver of kTileColumns][k][column]; a
// task packs the rows of A it works on into [sliver of kTileRows][k][row] and multiplies sliver by
// sliver, so that the inner loop reads both operands front to back. The first-level cache, which
// two hardware threads may share, holds neither: the loop fetches both from the second level some
// steps ahead, which is enough, since a step has more arithmetic than bytes.
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
constexpr std::int64_t kKBlockMax = 768;
constexpr std::int64_t kRowSliversPerTask = 16;
constexpr std::int64_t kColumnSliversPerTask = 8;  // of packing
constexpr std::int64_t kStepsAhead = 8;            // of the fetches in the inner loop
constexpr std::int64_t kPackSteps = 16;  // along K at a time, where the operand lies across K
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

/// The 128-bit blocks of v, one to every `stride` elements.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* out, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t kBlocks = hn::MaxLanes(hn::Half<D>()) / 4;
    store_blocks(half, hn::LowerHalf(half, v), out, stride);
    store_blocks(half, hn::UpperHalf(half, v), out + kBlocks * stride, stride);
  }
}

/// pack_along_k() of whole vectors of D from element k on; returns where it stopped.
template <int kWidth, class D, class T>
std::int64_t pack_vectors(D d, const T* source, std::int64_t ld, std::int64_t k, std::int64_t kc,
                          float* out) {
  const hn::Repartition<double, D> dd;
  constexpr std::int64_t kStep = hn::MaxLanes(D());
  for (; k + kStep <= kc; k += kStep) {
#pragma clang loop unroll(full)
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
      const auto store = [&](auto v, std::int64_t j) HWY_ATTR {
        store_blocks(d, hn::BitCast(d, v), to + j * kWidth, 4 * kWidth);
      };
      store(hn::InterleaveLower(dd, a01, a23), 0);
      store(hn::InterleaveUpper(dd, a01, a23), 1);
      store(hn::InterleaveLower(dd, b01, b23), 2);
      store(hn::InterleaveUpper(dd, b01, b23), 3);
    }
  }
  return k;
}

/// out[k * kWidth + r] = source[r * ld + k] for `rows` <= kWidth rows; the rest becomes zero. A
/// cache line of the source is read at once: rows a power of two apart would push each other out of
/// the cache before one came back to it.
template <int kWidth, class T>
void pack_along_k(const T* source, std::int64_t ld, int rows, std::int64_t kc, float* out) {
  std::int64_t k = 0;
  if (rows == kWidth) {
    k = pack_vectors<kWidth>(F32(), source, ld, k, kc, out);
    k = pack_vectors<kWidth>(F32x4(), source, ld, k, kc, out);
  }
  const hn::FixedTag<float, 1> d1;
  for (; k < kc; ++k) {
    for (int r = 0; r < kWidth; ++r) {
      out[k * kWidth + r] = r < rows ? hn::GetLane(load_f32(d1, source + r * ld + k)) : 0.0F;
    }
  }
}

/// out[k * kWidth + r] = source[k * ld + r] for `rows` <= kWidth; the rest becomes zero.
/// `readable`: elements that may be read from each row of the source.
template <int kWidth, class T>
void pack_across_k(const T* source, std::int64_t ld, int rows, std::int64_t readable,
                   std::int64_t kc, float* out) {
  const F32 d;
  const hn::FixedTag<float, 1> d1;
  constexpr int kVectors = (kWidth + kLanes - 1) / kLanes;
  std::int64_t k = 0;
  if (readable >= kVectors * kLanes) {
    // Whole vectors; what they write too much is overwritten by the next row, so the last row is
    // left to the exact loop.
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

/// An operand as packing sees it: rows of A, or columns of B.
struct Lines {
  const GemmOperand& operand;
  std::int64_t along, across;  // strides along K and from line to line
  std::int64_t count;
};

/// Packs `slivers` slivers of kWidth lines from sliver `first`, elements [k0, k0 + kc) of each.
/// Where lines lie across K, a few steps of K at a time for all of them: what is left of a cache
/// line then goes into the next sliver while the line is still near.
template <int kWidth, class T>
void pack_typed(const Lines& lines, std::int64_t first, std::int64_t slivers, std::int64_t k0,
                std::int64_t kc, float* out) {
  const auto* data = static_cast<const T*>(lines.operand.data);
  const std::int64_t steps = lines.along == 1 ? kc : std::min(kc, kPackSteps);
  for (std::int64_t k = 0; k < kc; k += steps) {
    const std::int64_t count = std::min(steps, kc - k);
    for (std::int64_t s = 0; s < slivers; ++s) {
      const std::int64_t line = (first + s) * kWidth;
      const std::int64_t left = lines.count - line;
      const int rows = static_cast<int>(std::min<std::int64_t>(kWidth, left));
      const T* source = data + line * lines.across + (k0 + k) * lines.along;
      float* to = out + (s * kc + k) * kWidth;
      if (lines.along == 1) {
        pack_along_k<kWidth>(source, lines.across, rows, count, to);
      } else {
        pack_across_k<kWidth>(source, lines.along, rows, left, count, to);
      }
    }
  }
}

template <int kWidth>
void pack(const Lines& lines, std::int64_t first, std::int64_t slivers, std::int64_t k0,
          std::int64_t kc, float* out) {
  with_element(lines.operand.type, [&](auto element) HWY_ATTR {
    pack_typed<kWidth, decltype(element)>(lines, first, slivers, k0, kc, out);
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

/// The first kRows rows of a tile.
template <int kRows, class T>
void tile_rows(std::int64_t kc, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
               const TileTarget<T>& to) {
  const F32 d;
  hn::Vec<F32> sum0[kRows];
  hn::Vec<F32> sum1[kRows];
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
    sum0[i] = hn::Zero(d);
    sum1[i] = hn::Zero(d);
  }
  const T* row = to.initial != nullptr ? to.initial : to.c;
  const std::int64_t row_ld = to.initial != nullptr ? to.initial_ld : to.ld;
  std::int64_t k = 0;
  for (int part = 0; part < to.rows; ++part, row += row_ld) {
    // The tile of C is needed at the end. Its rows are fetched one after another: all at once they
    // would keep those of A and B waiting.
    hwy::Prefetch(row);
    hwy::Prefetch(row + kLanes);
    for (const std::int64_t end = (part + 1) * kc / to.rows; k < end; ++k) {
      hwy::Prefetch(b + kStepsAhead * kTileColumns);
      hwy::Prefetch(b + kStepsAhead * kTileColumns + kLanes);
      hwy::Prefetch(a + 2 * kStepsAhead * kTileRows);
      const auto b0 = hn::Load(d, b);
      const auto b1 = hn::Load(d, b + kLanes);
#pragma clang loop unroll(full)
      for (int i = 0; i < kRows; ++i) {
        const auto ai = hn::Set(d, a[i]);
        sum0[i] = hn::MulAdd(ai, b0, sum0[i]);
        sum1[i] = hn::MulAdd(ai, b1, sum1[i]);
      }
      a += kTileRows;
      b += kTileColumns;
    }
  }
  if (to.columns == kTileColumns) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows; ++i) {
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
  HWY_ALIGN float sums[kRows * kTileColumns];
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
    hn::Store(sum0[i], d, sums + i * kTileColumns);
    hn::Store(sum1[i], d, sums + i * kTileColumns + kLanes);
  }
  finish_partial(sums, to);
}

/// A tile that ends C may have few rows: then no more than needed are computed.
template <class T, int kRows = kTileRows>
void tile(std::int64_t kc, const float* a, const float* b, const TileTarget<T>& to) {
  constexpr int kFewer = kRows > 8 ? 8 : 4;
  if constexpr (kRows > kFewer) {
    if (to.rows <= kFewer) {
      return tile<T, kFewer>(kc, a, b, to);
    }
  }
  tile_rows<kRows>(kc, a, b, to);
}

template <class T>
struct Matmul {
  const GemmProblem& p;
  GemmGrid grid;
  std::int64_t k_block;
  const float* packed_b;

  /// Panel of B for the K block that begins at k0, kc long.
  [[nodiscard]] std::int64_t panel(std::int64_t k0) const {
    return k0 * grid.column_tiles * kTileColumns;
  }

  void matmul(const GemmGrid::Part& part) const {
    const std::int64_t rows = part.row_end - part.row_begin;
    auto* packed_a =
        packed_a_scratch.get<float>(static_cast<std::size_t>(rows * kTileRows * k_block));
    std::int64_t k0 = 0;
    do {  // once where K is empty: C then becomes its start
      const std::int64_t kc = std::min(k_block, p.k - k0);
      pack<kTileRows>({p.a, p.a.column_stride, p.a.row_stride, p.m}, part.row_begin, rows, k0, kc,
                      packed_a);
      for (std::int64_t c = part.column_begin; c < part.column_end; ++c) {
        const float* b = packed_b + panel(k0) + c * kTileColumns * kc;
        for (std::int64_t r = 0; r < rows; ++r) {
          tile<T>(kc, packed_a + r * kTileRows * kc, b, target(part.row_begin + r, c, k0 == 0));
        }
      }
      k0 += k_block;
    } while (k0 < p.k);
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
  const Matmul<T> matmul{p, grid, k_block, packed_b};
  const Lines columns = {p.b, p.b.row_stride, p.b.column_stride, p.n};
  parallel_blocks(grid.column_tiles, kColumnSliversPerTask,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t k0 = 0; k0 < p.k; k0 += k_block) {
                      const std::int64_t kc = std::min(k_block, p.k - k0);
                      pack<kTileColumns>(columns, begin, end - begin, k0, kc,
                                         packed_b + matmul.panel(k0) + begin * kTileColumns * kc);
                    }
                  });
  parallel_tasks(grid.tasks(), [&](std::int64_t task) { matmul.matmul(grid.part(task)); });
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
