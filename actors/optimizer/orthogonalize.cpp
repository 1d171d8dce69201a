#include "actors/optimizer/orthogonalize.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/kernels/matrix_product.hpp"
#include "actors/kernels/reduce.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr int kIterations = 5;
constexpr float kLinear = 3.4445F;
constexpr float kCubic = -4.7750F;
constexpr float kQuintic = 2.0315F;
constexpr double kEps = 1e-7;
constexpr std::size_t kRowsAtOnce = 64;  // of what is copied by one thread

/// The lesser extent first.
std::pair<std::size_t, std::size_t> wide(MatrixShape shape) {
  return std::minmax(shape.rows, shape.columns);
}

Task<> multiply(CpuPool* pool, MatrixProduct product) {
  co_await pool->for_chunks(product_tiles(product),
                            [&product](std::size_t tile) { compute_product_tile(product, tile); },
                            {.name = "Muon: multiply"});
}

/// to [rows, columns] = from * factor, from [columns, rows] if it is to be transposed.
Task<> copy_scaled(CpuPool* pool, const float* from, float* to, MatrixShape shape, bool transposes,
                   float factor) {
  const auto [rows, columns] = shape;
  const auto copy_some = [=](std::size_t chunk) {
    const std::size_t end = std::min(rows, (chunk + 1) * kRowsAtOnce);
    for (std::size_t i = chunk * kRowsAtOnce; i < end; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        to[i * columns + j] = factor * from[transposes ? j * rows + i : i * columns + j];
      }
    }
  };
  co_await pool->for_chunks((rows + kRowsAtOnce - 1) / kRowsAtOnce, copy_some,
                            {.name = "Muon: scale"});
}

}  // namespace

std::size_t MatrixShape::scratch_floats() const noexcept {
  const auto [m, n] = wide(*this);
  return 2 * m * n + 2 * m * m;
}

double MatrixShape::cost() const noexcept {
  const auto [less, more] = wide(*this);
  const auto m = static_cast<double>(less);
  const auto n = static_cast<double>(more);
  return kIterations * m * m * (2 * n + m);
}

Task<> orthogonalize(CpuPool* pool, float* matrix, MatrixShape shape, std::span<float> scratch) {
  TANDEM_CHECK_LE(shape.scratch_floats(), scratch.size(), "an iteration has room for its matrices");
  const auto [m, n] = wide(shape);
  const bool transposes = shape.rows > shape.columns;
  float* x = scratch.data();  // [m, n]
  float* next = x + m * n;    // [m, n]
  float* gram = next + m * n;
  float* polynomial = gram + m * m;
  const auto norm_of = [&] {
    GradientNorm norm;
    add_norm(matrix, DType::kF32, 0, shape.elements(), norm);
    return std::sqrt(norm.sum_of_squares.value());
  };
  const double norm = co_await pool->run(norm_of, "Muon: norm");
  co_await copy_scaled(pool, matrix, x, {m, n}, transposes, static_cast<float>(1 / (norm + kEps)));
  for (int i = 0; i < kIterations; ++i) {
    co_await multiply(
        pool, {.a = x, .b = x, .c = gram, .rows = m, .columns = m, .depth = n, .b_across = true});
    // The gram matrix is its own transpose, and rows of it lie together.
    co_await multiply(pool, {.a = gram,
                             .b = gram,
                             .d = gram,
                             .c = polynomial,
                             .rows = m,
                             .columns = m,
                             .depth = m,
                             .b_across = true,
                             .alpha = kQuintic,
                             .beta = kCubic});
    co_await multiply(pool, {.a = polynomial,
                             .b = x,
                             .d = x,
                             .c = next,
                             .rows = m,
                             .columns = n,
                             .depth = m,
                             .beta = kLinear});
    std::swap(x, next);
  }
  const double tall = static_cast<double>(shape.rows) / static_cast<double>(shape.columns);
  co_await copy_scaled(pool, x, matrix, shape, transposes,
                       static_cast<float>(std::sqrt(std::max(1.0, tall))));
}

}  // namespace tandem
