// models/kernels/gemm_grouped.cpp — many matmuls in one call: the team shares over matmuls and
// pieces of them.
//
// A piece is computed by one thread, packing included, so there is no barrier between a matmul's
// phases and none between matmuls. Pieces are cut along rows and columns of C only, which changes
// no bit (gemm.hpp's invariant).
#include <algorithm>
#include <vector>

#include "models/kernels/gemm.hpp"
#include "models/kernels/gemm_blocks.hpp"

namespace tandem {
namespace {

// Boundaries of pieces: whole tiles of both kernels in columns, and nearly so in rows (14 * 16 and
// 32
// * 7).
constexpr std::int64_t kColumnStep = 32;
constexpr std::int64_t kRowStep = 224;
constexpr std::int64_t kColumnsMin = 256;  // each piece packs its rows of A anew
constexpr std::int64_t kPiecesPerThread = 4;

double work_of(const GemmProblem& p) {
  return static_cast<double>(p.m) * static_cast<double>(p.n) *
         static_cast<double>(std::max<std::int64_t>(p.k, 1));
}

const void* at_element(const void* data, DType type, std::int64_t offset) {
  return data == nullptr ? nullptr
                         : static_cast<const std::byte*>(data) +
                               offset * static_cast<std::int64_t>(bytes_of(type));
}

GemmProblem piece_of(const GemmProblem& p, std::int64_t row, std::int64_t rows, std::int64_t column,
                     std::int64_t columns) {
  GemmProblem piece = p;
  piece.m = rows;
  piece.n = columns;
  piece.a.data = at_element(p.a.data, p.a.type, row * p.a.row_stride);
  piece.b.data = at_element(p.b.data, p.b.type, column * p.b.column_stride);
  piece.c.data = const_cast<void*>(at_element(p.c.data, p.c.type, row * p.c.ld + column));
  const std::int64_t initial_row = p.c.start == GemmStart::kBias ? 0 : row * p.c.initial_ld;
  piece.c.initial = at_element(p.c.initial, p.c.type, initial_row + column);
  return piece;
}

/// Extents of `parts` or fewer cuts of `size`, each a multiple of `step` but the last.
std::int64_t cut(std::int64_t size, std::int64_t parts, std::int64_t step) {
  return std::max(step, ceil_div(ceil_div(size, std::max<std::int64_t>(parts, 1)), step) * step);
}

void append_pieces(const GemmProblem& p, double most, std::vector<GemmProblem>& pieces) {
  const auto parts = static_cast<std::int64_t>(work_of(p) / most) + 1;
  const std::int64_t columns =
      cut(p.n, std::min(parts, std::max<std::int64_t>(1, p.n / kColumnsMin)), kColumnStep);
  const std::int64_t rows = cut(p.m, ceil_div(parts, ceil_div(p.n, columns)), kRowStep);
  for (std::int64_t column = 0; column < p.n; column += columns) {
    for (std::int64_t row = 0; row < p.m; row += rows) {
      pieces.push_back(
          piece_of(p, row, std::min(rows, p.m - row), column, std::min(columns, p.n - column)));
    }
  }
}

}  // namespace

void gemm_grouped(std::span<const GemmProblem> problems, void (*matmul)(const GemmProblem&)) {
  double work = 0;
  for (const GemmProblem& p : problems) {
    work += work_of(p);
  }
  const auto team = static_cast<double>(parallel_team_size());
  const double most = team > 1 ? work / (team * kPiecesPerThread) : work + 1;
  std::vector<GemmProblem> pieces;
  pieces.reserve(problems.size());
  for (const GemmProblem& p : problems) {
    if (p.m > 0 && p.n > 0) {
      append_pieces(p, most, pieces);
    }
  }
  // Large matmuls come first, so that the thread that takes the last one has little to do.
  std::ranges::stable_sort(pieces, std::greater<>(), work_of);
  parallel_tasks(static_cast<std::int64_t>(pieces.size()),
                 [&](std::int64_t i) { matmul(pieces[static_cast<std::size_t>(i)]); });
}

}  // namespace tandem
