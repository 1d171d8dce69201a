// Muon's matrices: products against sums in double, the iteration against DeepSpeed's in double,
// and the same bits for every number of threads.
#include "actors/optimizer/orthogonalize.hpp"

#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/kernels/matrix_product.hpp"
#include "actors/kernels/update/direction.hpp"
#include "tests/actors/kernels/simd_targets.hpp"
#include "tests/support/oracle_tensors.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

TEST(MatrixProduct, IsTheSumOfProducts) {
  test::for_each_simd_target([] {
    struct Shape {
      std::size_t rows, columns, depth;
    };
    for (const Shape shape : {Shape{1, 1, 1}, {7, 33, 5}, {97, 96, 129}, {100, 200, 300}}) {
      for (const bool across : {false, true}) {
        const auto [rows, columns, depth] = shape;
        const auto a = random_values(rows * depth, 1);
        const auto b = random_values(columns * depth, 2);
        const auto d = random_values(rows * columns, 3);
        std::vector<float> c(rows * columns);
        const MatrixProduct product{.a = a.data(),
                                    .b = b.data(),
                                    .d = d.data(),
                                    .c = c.data(),
                                    .rows = rows,
                                    .columns = columns,
                                    .depth = depth,
                                    .b_across = across,
                                    .alpha = 0.5F,
                                    .beta = -2.0F};
        for (std::size_t tile = 0; tile < product_tiles(product); ++tile) {
          compute_product_tile(product, tile);
        }
        for (std::size_t i = 0; i < rows; ++i) {
          for (std::size_t j = 0; j < columns; ++j) {
            double sum = 0;
            for (std::size_t k = 0; k < depth; ++k) {
              sum += static_cast<double>(a[i * depth + k]) *
                     (across ? b[j * depth + k] : b[k * columns + j]);
            }
            ASSERT_NEAR(c[i * columns + j], 0.5 * sum - 2.0 * d[i * columns + j],
                        1e-6 * (10 + static_cast<double>(depth)))
                << i << ", " << j << " of " << rows << " x " << columns << " x " << depth;
          }
        }
      }
    }
  });
}

std::vector<float> orthogonalized(std::vector<float> matrix, MatrixShape shape, int threads = 2) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = threads, .name = "test"});
  std::vector<float> scratch(shape.scratch_floats());
  loop.run([](CpuPool* on, float* values, MatrixShape of,
              std::span<float> room) -> Task<> { co_await orthogonalize(on, values, of, room); },
           &pool, matrix.data(), shape, std::span<float>(scratch));
  return matrix;
}

TEST(Orthogonalize, HasTheSameBitsForEveryNumberOfThreads) {
  const MatrixShape shape{.rows = 260, .columns = 130};
  const auto matrix = random_values(shape.elements(), 4);
  const auto alone = orthogonalized(matrix, shape, 1);
  EXPECT_EQ(orthogonalized(matrix, shape, 3), alone);
}

TEST(Orthogonalize, MakesSingularValuesNearOneAndKeepsZeros) {
  const MatrixShape shape{.rows = 20, .columns = 50};
  const auto x = orthogonalized(random_values(shape.elements(), 5), shape);
  for (std::size_t i = 0; i < shape.rows; ++i) {
    double norm = 0;
    for (std::size_t k = 0; k < shape.columns; ++k) {
      norm += static_cast<double>(x[i * shape.columns + k]) * x[i * shape.columns + k];
    }
    EXPECT_GT(norm, 0.3);
    EXPECT_LT(norm, 1.5);
  }
  const std::vector<float> zeros(shape.elements());
  EXPECT_EQ(orthogonalized(zeros, shape), zeros);
}

// ---- DeepSpeed's, in double: tests/data/make_optimizers.py ----

struct MuonCase {
  const char* name;
  UpdateConfig config;
};
void PrintTo(const MuonCase& one, std::ostream* out) { *out << one.name; }

class MuonOracle : public ::testing::TestWithParam<MuonCase> {};

TEST_P(MuonOracle, StaysWithinWhatFp32Rounds) {
  const MuonCase& c = GetParam();
  // The update's error; DeepSpeed's own fp32 iteration is 3.1e-5 off in the worst of these
  // matrices.
  constexpr double kLimit = 5e-5;
  constexpr int kSteps = 10;
  const test::OracleTensors file(test::source_path("tests/data/optimizers/muon_") + c.name +
                                 ".safetensors");
  struct Named {
    const char* name;
    MatrixShape shape;
  };
  for (const auto& [name, shape] :
       {Named{"square", {8, 8}}, {"wide", {4, 14}}, {"tall", {12, 5}}, {"thin", {3, 20}}}) {
    const std::size_t size = shape.elements();
    const auto initial = file.get<float>("initial." + std::string(name));
    const auto gradients = file.get<float>("grad." + std::string(name));
    const auto wanted = file.get<double>("float64.param." + std::string(name));
    std::vector<float> p = initial;
    std::vector<float> m(size);
    std::vector<float> unused(size);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> g(gradients.begin() + static_cast<std::ptrdiff_t>(step * size),
                           gradients.begin() + static_cast<std::ptrdiff_t>((step + 1) * size));
      const std::vector<UpdateRange> ranges = {{0, size, 0}};
      UpdatedUnit unit{
          .buffers = {.master = p.data(), .state = {m.data(), unused.data()}, .gradient = g.data()},
          .shadow = {},
          .ranges = ranges};
      Direction direction = Direction::of(ranges, g.data(), 512);
      const DirectionStep first = direction_step(c.config, 1);
      write_direction(unit, &first, direction, 0, size);
      std::ranges::copy(orthogonalized(g, shape), g.begin());
      const UpdateStep second = UpdateStep::make(c.config, step + 1, 1);
      run_update_pass(UpdatePass::kInPlace, unit, &second, 0, size);
    }
    double error = 0;
    double update = 0;
    double weight = 0;
    for (std::size_t k = 0; k < size; ++k) {
      const double want = wanted[k];
      error += std::pow(p[k] - want, 2);
      update += std::pow(want - initial[k], 2);
      weight += std::pow(want, 2);
    }
    // The master is rounded once a step, by half a unit in its last place at most.
    const double rounding = kSteps * std::exp2(-24) * std::sqrt(weight);
    EXPECT_LE(std::sqrt(error), kLimit * std::sqrt(update) + rounding) << name;
    const auto momentum = file.get<double>("float64.momentum_buffer." + std::string(name));
    for (std::size_t k = 0; k < size; ++k) {
      ASSERT_NEAR(m[k], momentum[k], 1e-6) << name;
    }
    EXPECT_EQ(unused, std::vector<float>(size)) << "a matrix has one moment";
  }
}

UpdateConfig muon(double lr, double momentum, double decay, bool nesterov = true) {
  return {.kind = OptimizerKind::kMuon,
          .lr = lr,
          .weight_decay = decay,
          .momentum = momentum,
          .nesterov = nesterov};
}

INSTANTIATE_TEST_SUITE_P(Files, MuonOracle,
                         ::testing::Values(MuonCase{"deepspeed_standard", muon(0.02, 0.95, 0.01)},
                                           MuonCase{"torch_default", muon(1e-3, 0.95, 0.1)},
                                           MuonCase{"torch_no_nesterov",
                                                    muon(0.02, 0.95, 0, false)}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
