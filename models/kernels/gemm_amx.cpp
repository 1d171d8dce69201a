// models/kernels/gemm_amx.cpp — the bf16 matmul of gemm.hpp on AMX tiles.
//
// A tile is 16 rows of 64 bytes. C is computed in blocks of 32 x 32 (four fp32 tiles, in registers
// over all of K) from two tiles of A [16 rows][32 k] and two of B [16 pairs of k][16 columns][2].
// Both operands are packed into such tiles; the four transposition cases are made of two steps:
// interleaving two rows of K, and transposing 16 x 16 pairs.
#include <hwy/highway.h>

#include "models/kernels/gemm_blocks.hpp"
#include "models/kernels/scratch.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)

#include <algorithm>
#include <cstring>

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kTile = 16;           // rows of a tile, and pairs of bf16 in a row
constexpr std::int64_t kTileK = 32;          // elements of K in a tile
constexpr std::int64_t kTileElements = 512;  // bf16 in a tile
constexpr std::int64_t kBlock = 32;          // rows and columns of a block of C
constexpr std::int64_t kRowBlocksPerTask = 4;
// elements that packing along K asks for in advance
constexpr std::int64_t kAheadAlong = 4 * kTileK;

thread_local Scratch packed_a_scratch;
thread_local Scratch packed_b_scratch;

using Bf16 = std::uint16_t;

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

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

/// Packs 32 rows of A or columns of B from `first` as [k / 32][2 tiles]. `pairs_first`: tiles lie
/// as B wants them.
void pack_sliver(const GemmOperand& operand, std::int64_t along, std::int64_t across,
                 std::int64_t first, std::int64_t last, std::int64_t k, bool pairs_first,
                 Bf16* out) {
  const auto* data = static_cast<const Bf16*>(operand.data);
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileK) {
    for (std::int64_t half = 0; half < 2; ++half, out += kTileElements) {
      const std::int64_t row = first + half * kTile;
      const Bf16* from = data + row * across + k0 * along;
      Rows t = along == 1
                   ? load_along_k(from, across, last - row, k - k0)
                   : load_across_k(from, along, std::max<std::int64_t>(last - row, 0), k - k0);
      if ((along == 1) == pairs_first) {
        transpose_pairs(t);
      }
      store_rows(t, out);
    }
  }
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

HWY_INLINE void matmul_block(const Bf16* a, const Bf16* b, std::int64_t steps, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t s = 0; s < steps; ++s) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(5, a + kTileElements, 64);
    _tile_loadd(7, b + kTileElements, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += 2 * kTileElements;
    b += 2 * kTileElements;
  }
  constexpr int kRowBytes = kBlock * sizeof(float);
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kTile, kRowBytes);
  _tile_stored(2, sums + kTile * kBlock, kRowBytes);
  _tile_stored(3, sums + kTile * kBlock + kTile, kRowBytes);
}

HWY_INLINE __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

HWY_INLINE void finish_bf16(const float* sums, const GemmTarget& c, std::int64_t i0,
                            std::int64_t j0, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    Bf16* to = static_cast<Bf16*>(c.data) + (i0 + i) * c.ld + j0;
    const std::int64_t initial_ld = c.start == GemmStart::kBias ? 0 : c.initial_ld;
    const Bf16* from = static_cast<const Bf16*>(c.initial) + (i0 + i) * initial_ld + j0;
    for (std::int64_t j = 0; j < columns; j += kTile) {
      const __mmask16 mask =
          columns - j >= kTile ? 0xffffU : static_cast<__mmask16>((1U << (columns - j)) - 1);
      __m512 value = _mm512_load_ps(sums + i * kBlock + j);
      if (c.start != GemmStart::kZero) {
        value = _mm512_add_ps(value, widen(_mm256_maskz_loadu_epi16(mask, from + j)));
      }
      const __m256bh narrow = _mm512_cvtneps_pbh(value);
      _mm256_mask_storeu_epi16(to + j, mask, reinterpret_cast<const __m256i&>(narrow));
    }
  }
}

HWY_INLINE void finish_f32(const float* sums, const GemmTarget& c, std::int64_t i0, std::int64_t j0,
                           std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* to = static_cast<float*>(c.data) + (i0 + i) * c.ld + j0;
    const std::int64_t initial_ld = c.start == GemmStart::kBias ? 0 : c.initial_ld;
    const float* from = static_cast<const float*>(c.initial) + (i0 + i) * initial_ld + j0;
    for (std::int64_t j = 0; j < columns; j += kTile) {
      const __mmask16 mask =
          columns - j >= kTile ? 0xffffU : static_cast<__mmask16>((1U << (columns - j)) - 1);
      __m512 value = _mm512_load_ps(sums + i * kBlock + j);
      if (c.start != GemmStart::kZero) {
        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, from + j));
      }
      _mm512_mask_storeu_ps(to + j, mask, value);
    }
  }
}

struct AmxGemm {
  const GemmProblem& p;
  GemmGrid grid;
  std::int64_t steps;  // of K
  Bf16* packed_b;

  [[nodiscard]] std::int64_t sliver() const { return steps * 2 * kTileElements; }

  void pack_b(std::int64_t column) const {
    pack_sliver(p.b, p.b.row_stride, p.b.column_stride, column * kBlock, p.n, p.k, true,
                packed_b + column * sliver());
  }

  void matmul(const GemmGrid::Part& part) const {
    const std::int64_t rows = part.row_end - part.row_begin;
    Bf16* a = packed_a_scratch.get<Bf16>(static_cast<std::size_t>(rows * sliver()));
    for (std::int64_t r = 0; r < rows; ++r) {
      pack_sliver(p.a, p.a.column_stride, p.a.row_stride, (part.row_begin + r) * kBlock, p.m, p.k,
                  false, a + r * sliver());
    }
    const TileConfig config;
    _tile_loadconfig(&config);
    alignas(64) float sums[kBlock * kBlock];
    for (std::int64_t c = part.column_begin; c < part.column_end; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) {
        matmul_block(a + r * sliver(), packed_b + c * sliver(), steps, sums);
        const std::int64_t i = (part.row_begin + r) * kBlock;
        const std::int64_t j = c * kBlock;
        (p.c.type == DType::kBF16 ? finish_bf16 : finish_f32)(
            sums, p.c, i, j, std::min(kBlock, p.m - i), std::min(kBlock, p.n - j));
      }
    }
    _tile_release();
  }
};

void run(const GemmProblem& p) {
  const GemmGrid grid =
      GemmGrid::of(ceil_div(p.m, kBlock), ceil_div(p.n, kBlock), kRowBlocksPerTask);
  AmxGemm matmul{p, grid, ceil_div(p.k, kTileK), nullptr};
  matmul.packed_b =
      packed_b_scratch.get<Bf16>(static_cast<std::size_t>(grid.column_tiles * matmul.sliver()));
  parallel_tasks(grid.column_tiles, [&](std::int64_t c) { matmul.pack_b(c); });
  parallel_tasks(grid.tasks(), [&](std::int64_t task) { matmul.matmul(grid.part(task)); });
}

HWY_POP_ATTRIBUTES

/// AMX-TILE, AMX-BF16 and AVX512-BF16 in cpuid, and the tile registers granted by the operating
/// system.
bool detect() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & (1U << 22)) == 0 ||
      (edx & (1U << 24)) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & (1U << 5)) == 0) {
    return false;
  }
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool gemm_bf16_available() {
  static const bool available = detect();
  return available;
}

bool has_bf16_vector_dot() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 5 & 1) != 0;
}

void gemm_bf16(const GemmProblem& problem) {
  TANDEM_CHECK(gemm_bf16_available(), "the caller asks before it chooses this kernel");
  run(problem);
}

}  // namespace tandem

#else

#include "runtime/util/check.hpp"

namespace tandem {

bool gemm_bf16_available() { return false; }
bool has_bf16_vector_dot() { return false; }
void gemm_bf16(const GemmProblem&) {
  TANDEM_CHECK(false, "the caller asks gemm_bf16_available() first");
}

}  // namespace tandem

#endif
