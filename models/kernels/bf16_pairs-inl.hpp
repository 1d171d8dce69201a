// models/kernels/bf16_pairs-inl.hpp — packs bf16 operands for instructions that multiply pairs
// along K, and writes their sums into C. Included inside of namespace tandem's anonymous namespace
// by the kernels of gemm_bf16.hpp.
//
// A packed tile is 16 rows of 64 bytes: [16 lines][32 k], or pairs first: [16 pairs of k][16
// lines][2]. The four transposition cases are made of two steps: interleaving two rows of K, and
// transposing 16 x 16 pairs.
#pragma once

#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>
#include <immintrin.h>

#include "models/kernels/gemm.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kTile = 16;           // lines of a tile, and pairs of bf16 along K
constexpr std::int64_t kTileK = 32;          // elements of K in a tile
constexpr std::int64_t kTileElements = 512;  // bf16 in a tile
// elements that packing along K prefetches
constexpr std::int64_t kAheadAlong = 4 * kTileK;

using Bf16 = std::uint16_t;

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

struct Rows {
  __m512i row[16];
};

HWY_INLINE void transpose_pairs(Rows& t) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(t.row[i], t.row[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(t.row[i], t.row[i + 1]);
  }
  __m512i b[16];
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i lo02 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    const __m512i hi02 = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    const __m512i lo13 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    const __m512i hi13 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    t.row[i] = _mm512_shuffle_i32x4(lo02, lo13, 0x88);
    t.row[i + 4] = _mm512_shuffle_i32x4(hi02, hi13, 0x88);
    t.row[i + 8] = _mm512_shuffle_i32x4(lo02, lo13, 0xdd);
    t.row[i + 12] = _mm512_shuffle_i32x4(hi02, hi13, 0xdd);
  }
}

HWY_INLINE void store_rows(const Rows& t, Bf16* out) {
  for (int i = 0; i < 16; ++i) {
    _mm512_store_si512(out + i * kTileK, t.row[i]);
  }
}

/// 16 rows of 32 elements along K; rows past `rows` and elements past `kc` become zero.
HWY_INLINE Rows load_along_k(const Bf16* from, std::int64_t ld, std::int64_t rows,
                             std::int64_t kc) {
  const __mmask32 mask = kc >= kTileK ? 0xffffffffU : (1U << kc) - 1;
  Rows t;
  for (int i = 0; i < 16; ++i) {
    // The hardware's prefetcher does not follow sixteen streams at once.
    _mm_prefetch(reinterpret_cast<const char*>(from + i * ld + kAheadAlong), _MM_HINT_T0);
    t.row[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * ld) : _mm512_setzero_si512();
  }
  return t;
}

/// 32 rows of K, 16 elements each, as [pair of k][element][2].
HWY_INLINE Rows load_across_k(const Bf16* from, std::int64_t ld, std::int64_t rows,
                              std::int64_t kc) {
  const __mmask16 mask = rows >= kTile ? 0xffffU : static_cast<__mmask16>((1U << rows) - 1);
  Rows t;
  for (int i = 0; i < 16; ++i) {
    const Bf16* pair = from + 2 * i * ld;
    _mm_prefetch(reinterpret_cast<const char*>(pair + kTileK * ld), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(pair + (kTileK + 1) * ld), _MM_HINT_T0);
    const __m256i even = 2 * i < kc ? _mm256_maskz_loadu_epi16(mask, pair) : _mm256_setzero_si256();
    const __m256i odd =
        2 * i + 1 < kc ? _mm256_maskz_loadu_epi16(mask, pair + ld) : _mm256_setzero_si256();
    t.row[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
  return t;
}

/// The lines of an operand: their strides along K and from line to line.
struct PairLines {
  const Bf16* data;
  std::int64_t along, across;
  std::int64_t k;
};

/// Packs `lines` lines from `first` as [k / 32][tiles]; lines past them become zero. `pairs_first`:
/// a tile is [16 pairs of k][16 lines][2], else [16 lines][32 k].
void pack_pairs(const PairLines& from, std::int64_t first, std::int64_t lines, std::int64_t tiles,
                bool pairs_first, Bf16* out) {
  for (std::int64_t k0 = 0; k0 < from.k; k0 += kTileK) {
    for (std::int64_t tile = 0; tile < tiles; ++tile, out += kTileElements) {
      const std::int64_t left = std::max<std::int64_t>(lines - tile * kTile, 0);
      const Bf16* at = from.data + (first + tile * kTile) * from.across + k0 * from.along;
      Rows t = from.along == 1 ? load_along_k(at, from.across, left, from.k - k0)
                               : load_across_k(at, from.along, left, from.k - k0);
      if ((from.along == 1) == pairs_first) {
        transpose_pairs(t);
      }
      store_rows(t, out);
    }
  }
}

HWY_INLINE __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

HWY_INLINE __m512 load_masked(__mmask16 mask, const float* from) {
  return _mm512_maskz_loadu_ps(mask, from);
}
HWY_INLINE __m512 load_masked(__mmask16 mask, const Bf16* from) {
  return widen(_mm256_maskz_loadu_epi16(mask, from));
}
HWY_INLINE void store_masked(__mmask16 mask, __m512 value, float* to) {
  _mm512_mask_storeu_ps(to, mask, value);
}
HWY_INLINE void store_masked(__mmask16 mask, __m512 value, Bf16* to) {
  const __m256bh narrow = _mm512_cvtneps_pbh(value);
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<const __m256i&>(narrow));
}

/// Writes a block of C, of type T, from its sums, [rows][sums_ld], and C's start.
template <class T>
HWY_INLINE void finish_typed(const float* sums, std::int64_t sums_ld, const GemmTarget& c,
                             std::int64_t i0, std::int64_t j0, std::int64_t rows,
                             std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    T* to = static_cast<T*>(c.data) + (i0 + i) * c.ld + j0;
    const std::int64_t initial_ld = c.start == GemmStart::kBias ? 0 : c.initial_ld;
    const T* from = static_cast<const T*>(c.initial) + (i0 + i) * initial_ld + j0;
    for (std::int64_t j = 0; j < columns; j += kTile) {
      const __mmask16 mask =
          columns - j >= kTile ? 0xffffU : static_cast<__mmask16>((1U << (columns - j)) - 1);
      __m512 value = _mm512_load_ps(sums + i * sums_ld + j);
      if (c.start != GemmStart::kZero) {
        value = _mm512_add_ps(value, load_masked(mask, from + j));
      }
      store_masked(mask, value, to + j);
    }
  }
}

/// Writes the block of C at row i0 and column j0, as much of `rows` x `columns` as lies in C.
HWY_INLINE void finish_block(const float* sums, std::int64_t sums_ld, const GemmProblem& p,
                             std::int64_t i0, std::int64_t j0, std::int64_t rows,
                             std::int64_t columns) {
  (p.c.type == DType::kBF16 ? finish_typed<Bf16>
                            : finish_typed<float>)(sums, sums_ld, p.c, i0, j0,
                                                   std::min(rows, p.m - i0),
                                                   std::min(columns, p.n - j0));
}

/// A's rows and B's columns, as packing sees them.
inline PairLines rows_of_a(const GemmProblem& p) {
  return {static_cast<const Bf16*>(p.a.data), p.a.column_stride, p.a.row_stride, p.k};
}
inline PairLines columns_of_b(const GemmProblem& p) {
  return {static_cast<const Bf16*>(p.b.data), p.b.row_stride, p.b.column_stride, p.k};
}

HWY_POP_ATTRIBUTES

}  // namespace
}  // namespace tandem
