// models/kernels/gemm_bf16_tiles.cpp — the bf16 matmul of gemm.hpp on AMX tiles.
//
// C is computed in blocks of 32 x 32 (four fp32 tiles, in registers over all of K) from two tiles
// of A [16 rows][32 k] and two of B [16 pairs of k][16 columns][2].
#include <hwy/highway.h>

#include "actors/kernels/simd_limit.hpp"
#include "models/kernels/gemm_bf16.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "models/kernels/bf16_pairs-inl.hpp"
#include "models/kernels/gemm_blocks.hpp"
#include "models/kernels/scratch.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kBlock = 32;  // rows and columns of a block of C
constexpr std::int64_t kRowBlocksPerTask = 4;

thread_local Scratch packed_a_scratch;
thread_local Scratch packed_b_scratch;

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

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

struct AmxGemm {
  const GemmProblem& p;
  GemmGrid grid;
  std::int64_t steps;  // of K
  Bf16* packed_b;

  [[nodiscard]] std::int64_t sliver() const { return steps * 2 * kTileElements; }

  void pack_b(std::int64_t column) const {
    pack_pairs(columns_of_b(p), column * kBlock, p.n - column * kBlock, 2, true,
               packed_b + column * sliver());
  }

  void matmul(const GemmGrid::Part& part) const {
    const std::int64_t rows = part.row_end - part.row_begin;
    Bf16* a = packed_a_scratch.get<Bf16>(static_cast<std::size_t>(rows * sliver()));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t first = (part.row_begin + r) * kBlock;
      pack_pairs(rows_of_a(p), first, p.m - first, 2, false, a + r * sliver());
    }
    const TileConfig config;
    _tile_loadconfig(&config);
    alignas(64) float sums[kBlock * kBlock];
    for (std::int64_t c = part.column_begin; c < part.column_end; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) {
        matmul_block(a + r * sliver(), packed_b + c * sliver(), steps, sums);
        finish_block(sums, kBlock, p, (part.row_begin + r) * kBlock, c * kBlock, kBlock, kBlock);
      }
    }
    _tile_release();
  }
};

HWY_POP_ATTRIBUTES

bool detect() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTileUnit = 1U << 24, kTileBf16 = 1U << 22;
  if (!simd_allows(SimdLimit::kTiles) || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kTileUnit) == 0 || (edx & kTileBf16) == 0 || !has_bf16_vectors()) {
    return false;
  }
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_bf16_tiles() {
  static const bool available = detect();
  return available;
}

void gemm_bf16_tiles(const GemmProblem& p) {
  const GemmGrid grid =
      GemmGrid::of(ceil_div(p.m, kBlock), ceil_div(p.n, kBlock), kRowBlocksPerTask);
  AmxGemm matmul{p, grid, ceil_div(p.k, kTileK), nullptr};
  matmul.packed_b =
      packed_b_scratch.get<Bf16>(static_cast<std::size_t>(grid.column_tiles * matmul.sliver()));
  parallel_tasks(grid.column_tiles, [&](std::int64_t c) { matmul.pack_b(c); });
  parallel_tasks(grid.tasks(), [&](std::int64_t task) { matmul.matmul(grid.part(task)); });
}

}  // namespace tandem

#else

namespace tandem {

bool has_bf16_tiles() { return false; }
void gemm_bf16_tiles(const GemmProblem&) {}

}  // namespace tandem

#endif
