// The matmuls: every transposition, start and type against double precision.
#include "models/layers/gemm.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "models/kernels/gemm_bf16.hpp"
#include "tests/models/layers/math_support.hpp"

namespace tandem {
namespace {

using test::random;
using test::relative_error;

struct Extents {
  std::int64_t m, n, k;
};
constexpr Extents kExtents[] = {{1, 1, 1},     {3, 5, 7},    {14, 32, 256},
                                {15, 33, 257}, {97, 65, 40}, {64, 130, 515},
                                {32, 32, 32},  {130, 1, 31}, {29, 33, 2100}};

at::Tensor operand(std::int64_t rows, std::int64_t columns, bool transposed, at::ScalarType type,
                   std::uint64_t seed) {
  return transposed ? random({columns, rows}, seed).to(type).t()
                    : random({rows, columns}, seed).to(type);
}

class Matmuls : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Matmuls, AgreeWithDoublePrecision) {
  const at::ScalarType type = GetParam();
  for (const Extents& e : kExtents) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        const at::Tensor a = operand(e.m, e.k, a_transposed, type, 1);
        const at::Tensor b = operand(e.k, e.n, b_transposed, type, 2);
        const at::Tensor row = random({e.n}, 3).to(type);
        const at::Tensor residual = random({e.m, e.n}, 4).to(type);
        const at::Tensor exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
        const auto check = [&](MatmulStart start, const at::Tensor& from,
                               const at::Tensor& expected) {
          const at::Tensor c = residual.clone();
          matmul(c, a, b, start, from);
          const double limit = type == at::kFloat ? 3e-6 : type == at::kHalf ? 1e-3 : 8e-3;
          EXPECT_LE(relative_error(c, expected), limit)
              << e.m << " " << e.n << " " << e.k << " " << a_transposed << b_transposed;
        };
        check(MatmulStart::kZero, {}, exact);
        check(MatmulStart::kAccumulate, {}, exact + residual.to(at::kDouble));
        check(MatmulStart::kFrom, row, exact + row.to(at::kDouble));
        check(MatmulStart::kFrom, random({e.m, e.n}, 5).to(type),
              exact + random({e.m, e.n}, 5).to(type).to(at::kDouble));
      }
    }
  }
}

TEST_P(Matmuls, WriteOnlyInsideTheirRows) {
  const at::ScalarType type = GetParam();
  const at::Tensor whole = at::full({40, 50}, 7, at::TensorOptions().dtype(type));
  const at::Tensor a = random({37, 20}, 1).to(type);
  const at::Tensor b = random({20, 45}, 2).to(type);
  matmul(whole.narrow(0, 1, 37).narrow(1, 2, 45), a, b);
  EXPECT_TRUE((whole.narrow(1, 0, 2) == 7).all().item<bool>());
  EXPECT_TRUE((whole.narrow(1, 47, 3) == 7).all().item<bool>());
  EXPECT_TRUE((whole.narrow(0, 38, 2) == 7).all().item<bool>());
}

TEST_P(Matmuls, OfAGroupAreThoseOfEach) {
  const at::ScalarType type = GetParam();
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 5}) {
    at::set_num_threads(count);
    std::vector<Matmul> group;
    std::vector<at::Tensor> expected;
    std::uint64_t seed = 0;
    for (const Extents& e : {Extents{300, 600, 40}, Extents{1, 45, 7}, Extents{20, 33, 0},
                             Extents{0, 33, 9}, Extents{3, 700, 300}}) {
      for (const MatmulStart start : {MatmulStart::kZero, MatmulStart::kAccumulate}) {
        const at::Tensor a = operand(e.m, e.k, seed % 3 == 0, type, seed + 1);
        const at::Tensor b = operand(e.k, e.n, seed % 2 == 0, type, seed + 2);
        group.push_back({random({e.m, e.n}, seed + 3).to(type), a, b, start});
        expected.push_back(group.back().c.clone());
        if (e.m > 0 && e.k > 0) {
          matmul(expected.back(), a, b, start);
        } else if (start == MatmulStart::kZero) {
          expected.back().zero_();
        }
        seed += 5;
      }
    }
    grouped_matmul(group);
    for (std::size_t i = 0; i < group.size(); ++i) {
      EXPECT_TRUE(at::equal(group[i].c, expected[i])) << i << ", " << count << " threads";
    }
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Types, Matmuls, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(OwnMatmuls, HaveTheSameBitsOnAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor a = random({301, 700}, 1).to(type);
    const at::Tensor b = random({700, 130}, 2).to(type);
    const at::Tensor first = at::empty({301, 130}, a.options());
    at::set_num_threads(1);
    matmul(first, a, b);
    for (const int count : {2, 3, 5}) {
      at::set_num_threads(count);
      const at::Tensor other = at::empty_like(first);
      matmul(other, a, b);
      EXPECT_TRUE(at::equal(first, other)) << count << " threads";
    }
  }
  at::set_num_threads(threads);
}

TEST(OwnMatmuls, WithoutRowsOrColumnsAreNothing) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions().dtype(type);
    const at::Tensor some = at::full({5, 0}, 1, options), none = at::full({0, 5}, 1, options);
    matmul(some, at::ones({5, 7}, options), at::ones({7, 0}, options));
    matmul(none, at::ones({0, 7}, options), at::ones({7, 5}, options));
  }
  at::set_num_threads(threads);
}

TEST(OwnMatmuls, SumBf16InFp32) {
  // 4096 ones added to a large number in bf16 would be lost one by one.
  const at::Tensor a = at::ones({2, 4096}, at::TensorOptions().dtype(at::kBFloat16));
  const at::Tensor b = at::ones({4096, 2}, at::TensorOptions().dtype(at::kBFloat16));
  const at::Tensor c = at::full({2, 2}, 1000.5);
  matmul(c, a, b, MatmulStart::kAccumulate);
  EXPECT_EQ(c[1][1].item<float>(), 5096.5F);
}

/// Where a processor has both, gemm_bf16() runs one of them; the other one is right, too.
TEST(Bf16Kernels, AgreeWithDoublePrecision) {
  if (!gemm_bf16_available()) {
    GTEST_SKIP() << "no bf16 instructions here";
  }
  for (const auto& [kernel, there] : {std::pair(&gemm_bf16_tiles, has_bf16_tiles()),
                                      std::pair(&gemm_bf16_vectors, has_bf16_vectors())}) {
    if (!there) {
      continue;
    }
    for (const Extents& e : kExtents) {
      const at::Tensor a = random({e.m, e.k}, 1).to(at::kBFloat16);
      const at::Tensor b = random({e.n, e.k}, 2).to(at::kBFloat16);
      const at::Tensor c = at::full({e.m, e.n}, 7.0F);
      kernel({e.m,
              e.n,
              e.k,
              {a.const_data_ptr(), e.k, 1, DType::kBF16},
              {b.const_data_ptr(), 1, e.k, DType::kBF16},
              {c.data_ptr(), e.n}});
      // Products of bf16 are exact in fp32: what is left is the rounding of sums.
      EXPECT_LE(relative_error(c, at::matmul(a.to(at::kDouble), b.to(at::kDouble).t())), 3e-6)
          << e.m << " " << e.n << " " << e.k;
    }
  }
}

}  // namespace
}  // namespace tandem
