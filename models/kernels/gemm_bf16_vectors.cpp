// models/kernels/gemm_bf16_vectors.cpp — the bf16 matmul of gemm.hpp on AVX512-BF16's dot products
// of pairs along K.
//
// C is computed in blocks of kRows x kColumns, with sums in registers over a block of K. A step
// loads a row of B, packed pairs first, and for each row of C one pair of A, which it gives to all
// lanes. A's tiles lie as A does, so nothing of A is transposed. K is cut so that a block's columns
// of B stay in the cache while all rows of a task are computed; the sums between blocks of K are
// fp32 and keep their order.
#include <hwy/highway.h>

#include "actors/kernels/simd_limit.hpp"
#include "models/kernels/gemm_bf16.hpp"
#include "runtime/util/check.hpp"

#if HWY_ARCH_X86_64

#include <cstring>

#include <cpuid.h>

#include "models/kernels/bf16_pairs-inl.hpp"
#include "models/kernels/gemm_blocks.hpp"
#include "models/kernels/scratch.hpp"

namespace tandem {
namespace {

constexpr int kRows = 12;
constexpr int kVectors = 2;  // 24 sums, a row of B and pairs of A in 32 registers
constexpr std::int64_t kColumns = kVectors * kTile;
constexpr std::int64_t kRowTilesPerTask = 16;
constexpr std::int64_t kTilesOfKMax = 32;  // in a block of K

thread_local Scratch packed_a_scratch;
thread_local Scratch packed_b_scratch;
thread_local Scratch sums_scratch;

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

HWY_INLINE __m512bh pairs_at(const Bf16* from) { return reinterpret_cast<const __m512bh&>(*from); }

/// sums [kRows][kColumns] += A B over `tiles` tiles of K, or = where they begin.
template <bool kPairsFirst>
void multiply(const Bf16* a, const Bf16* b, std::int64_t tiles, bool begin, float* sums) {
  __m512 sum[kRows][kVectors];
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = begin ? _mm512_setzero_ps() : _mm512_load_ps(sums + i * kColumns + v * kTile);
    }
  }
  for (std::int64_t t = 0; t < tiles; ++t) {
    for (std::int64_t p = 0; p < kTile; ++p) {
      __m512bh row[kVectors];
#pragma clang loop unroll(full)
      for (int v = 0; v < kVectors; ++v) {
        row[v] = pairs_at(b + v * kTileElements + p * kTileK);
        _mm_prefetch(reinterpret_cast<const char*>(b + (kVectors + v) * kTileElements + p * kTileK),
                     _MM_HINT_T0);
      }
#pragma clang loop unroll(full)
      for (int i = 0; i < kRows; ++i) {
        std::int32_t pair = 0;
        std::memcpy(&pair, a + (kPairsFirst ? p * kTileK + 2 * i : i * kTileK + 2 * p),
                    sizeof(pair));
        const auto pairs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma clang loop unroll(full)
        for (int v = 0; v < kVectors; ++v) {
          sum[i][v] = _mm512_dpbf16_ps(sum[i][v], pairs, row[v]);
        }
      }
    }
    a += kTileElements;
    b += kVectors * kTileElements;
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVectors; ++v) {
      _mm512_store_ps(sums + i * kColumns + v * kTile, sum[i][v]);
    }
  }
}

struct VectorGemm {
  const GemmProblem& p;
  GemmGrid grid;
  std::int64_t tiles;  // of K
  Bf16* packed_b;
  bool a_pairs_first;  // else rows first

  [[nodiscard]] std::int64_t a_sliver() const { return tiles * kTileElements; }
  [[nodiscard]] std::int64_t b_sliver() const { return tiles * kVectors * kTileElements; }

  void pack_b(std::int64_t column) const {
    pack_pairs(columns_of_b(p), column * kColumns, p.n - column * kColumns, kVectors, true,
               packed_b + column * b_sliver());
  }

  void matmul(const GemmGrid::Part& part) const {
    const std::int64_t rows = part.row_end - part.row_begin;
    Bf16* a = packed_a_scratch.get<Bf16>(static_cast<std::size_t>(rows * a_sliver()));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t first = (part.row_begin + r) * kRows;
      pack_pairs(rows_of_a(p), first, std::min<std::int64_t>(kRows, p.m - first), 1, a_pairs_first,
                 a + r * a_sliver());
    }
    float* sums = sums_scratch.get<float>(static_cast<std::size_t>(rows * kRows * kColumns));
    for (std::int64_t c = part.column_begin; c < part.column_end; ++c) {
      const Bf16* b = packed_b + c * b_sliver();
      std::int64_t t = 0;
      do {  // once where K is empty: C then becomes its start
        const std::int64_t count = std::min(kTilesOfKMax, tiles - t);
        for (std::int64_t r = 0; r < rows; ++r) {
          float* block = sums + r * kRows * kColumns;
          (a_pairs_first ? multiply<true> : multiply<false>)(a + r * a_sliver() + t * kTileElements,
                                                             b + t * kVectors * kTileElements,
                                                             count, t == 0, block);
          if (t + count == tiles) {
            finish_block(block, kColumns, p, (part.row_begin + r) * kRows, c * kColumns, kRows,
                         kColumns);
          }
        }
        t += count;
      } while (t < tiles);
    }
  }
};

HWY_POP_ATTRIBUTES

bool is_there() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kVectorBf16 = 1U << 5;
  return simd_allows(SimdLimit::kAvx512) && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kVectorBf16) != 0;
}

/// Intel's processors since Sapphire Rapids, which are those with AVX512-FP16, leave bf16 to their
/// matrix unit: their dot products have half the rate of fp32's multiplications.
bool is_slower_than_fp32() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kVectorFp16 = 1U << 23;
  return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kVectorFp16) != 0;
}

}  // namespace

bool has_bf16_vectors() {
  static const bool has = is_there();
  return has;
}

bool prefers_bf16_vectors() {
  static const bool prefers = has_bf16_vectors() && !is_slower_than_fp32();
  return prefers;
}

void gemm_bf16_vectors(const GemmProblem& p) {
  const GemmGrid grid =
      GemmGrid::of(ceil_div(p.m, kRows), ceil_div(p.n, kColumns), kRowTilesPerTask);
  VectorGemm matmul{p, grid, ceil_div(p.k, kTileK), nullptr, p.a.column_stride != 1};
  matmul.packed_b =
      packed_b_scratch.get<Bf16>(static_cast<std::size_t>(grid.column_tiles * matmul.b_sliver()));
  parallel_tasks(grid.column_tiles, [&](std::int64_t c) { matmul.pack_b(c); });
  parallel_tasks(grid.tasks(), [&](std::int64_t task) { matmul.matmul(grid.part(task)); });
}

}  // namespace tandem

#else

namespace tandem {

bool has_bf16_vectors() { return false; }
bool prefers_bf16_vectors() { return false; }
void gemm_bf16_vectors(const GemmProblem&) {}

}  // namespace tandem

#endif

namespace tandem {

bool gemm_bf16_available() { return has_bf16_tiles() || prefers_bf16_vectors(); }

void gemm_bf16(const GemmProblem& problem) {
  TANDEM_CHECK(gemm_bf16_available(), "the caller asks before it chooses this kernel");
  (has_bf16_tiles() ? gemm_bf16_tiles : gemm_bf16_vectors)(problem);
}

}  // namespace tandem
