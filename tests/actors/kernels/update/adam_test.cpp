#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <thread>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "actors/kernels/update/optimizer_step.hpp"
#include "tests/actors/kernels/float16_reference.hpp"
#include "tests/actors/kernels/simd_targets.hpp"
#include "tests/support/oracle_tensors.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using test::bf16_of;
using test::f16_of;

float f32_of(DType type, std::uint16_t bits) {
  return type == DType::kBF16 ? test::f32_of_bf16(bits) : test::f32_of_f16(bits);
}

/// One element as optimizer_step.hpp writes it down.
void reference(const AdamStep& s, float gradient, float& p, float& m, float& v) {
  float g = gradient * s.gradient_scale;
  if (!s.adamw) {
    g = g + s.decay * p;
  }
  m = s.beta1 * m + s.one_minus_beta1 * g;
  v = s.beta2 * v + (s.one_minus_beta2 * g) * g;
  float update = s.step_size * (m / (std::sqrt(v) * s.inverse_root_bias + s.eps));
  if (s.adamw) {
    update = update + s.decay * p;
  }
  p = p - update;
}

struct State {
  std::vector<float> p, m, v, g;
  std::vector<std::uint16_t> g16, gf16, w16;
  std::vector<float> w32;

  explicit State(std::size_t n)
      : p(n), m(n), v(n), g(n), g16(n), gf16(n), w16(n, 0xabcd), w32(n, -7.0F) {
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-42, 15);
    for (std::size_t i = 0; i < n; ++i) {
      const float wide = std::pow(10.0F, static_cast<float>(exponent(random)));
      p[i] = normal(random);
      m[i] = normal(random) * 1e-3F;
      v[i] = normal(random) * normal(random) * 1e-6F;
      v[i] = std::abs(v[i]);
      g[i] = i % 7 == 0 ? 0.0F : normal(random) * (i % 3 == 0 ? wide : 1e-3F);
      g16[i] = bf16_of(g[i]);
      gf16[i] = f16_of(g[i]);
    }
  }

  /// The 16-bit type of weights beside gradients of this type.
  static DType half_of(DType gradient) {
    return gradient == DType::kF16 ? DType::kF16 : DType::kBF16;
  }

  UpdateBuffers buffers(DType gradient, int weight, std::size_t shift = 0) {
    UpdateBuffers b{.master = p.data() + shift,
                    .state = {m.data() + shift, v.data() + shift},
                    .gradient_type = gradient};
    b.gradient = gradient == DType::kF32    ? static_cast<void*>(g.data() + shift)
                 : gradient == DType::kBF16 ? static_cast<void*>(g16.data() + shift)
                                            : static_cast<void*>(gf16.data() + shift);
    if (weight == 1) {
      b.weight = w32.data() + shift;
      b.weight_type = DType::kF32;
    } else if (weight == 2) {
      b.weight = w16.data() + shift;
      b.weight_type = half_of(gradient);
    }
    return b;
  }

  void run_reference(const UpdateStep& step, DType gradient, int weight, std::size_t begin,
                     std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float narrow = f32_of(gradient, gradient == DType::kBF16 ? g16[i] : gf16[i]);
      reference(std::get<AdamStep>(step.rule), gradient == DType::kF32 ? g[i] : narrow, p[i], m[i],
                v[i]);
      if (weight == 1) {
        w32[i] = p[i];
      } else if (weight == 2) {
        w16[i] = half_of(gradient) == DType::kBF16 ? bf16_of(p[i]) : f16_of(p[i]);
      }
    }
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

bool same_bits(const State& a, const State& b) {
  return same_bits(a.p, b.p) && same_bits(a.m, b.m) && same_bits(a.v, b.v) &&
         same_bits(a.w16, b.w16) && same_bits(a.w32, b.w32);
}

UpdateStep step_of(bool adamw, bool bias) {
  return UpdateStep::make(
      {.lr = 3e-4, .weight_decay = 0.1, .adamw = adamw, .bias_correction = bias}, 3, 0.37);
}

TEST(Adam, EveryTargetLengthAndBeginGivesTheScalarBits) {
  const std::size_t kCapacity = 300;
  const State start(kCapacity);
  for (const bool adamw : {true, false}) {
    for (const DType gradient : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int weight : {0, 1, 2}) {
        if (gradient != DType::kF32 && weight != 2) {
          continue;  // gradients of 16 bits come with weights of their type
        }
        for (std::size_t length = 0; length <= 257; ++length) {
          const std::size_t begin = length % 29;
          const UpdateStep step = step_of(adamw, length % 2 == 0);
          State expected = start;
          expected.run_reference(step, gradient, weight, begin, begin + length);
          test::for_each_simd_target([&] {
            State got = start;
            apply_update(step, got.buffers(gradient, weight), begin, begin + length);
            ASSERT_TRUE(same_bits(expected, got))
                << "length " << length << " adamw " << adamw << " weight " << weight;
          });
        }
      }
    }
  }
}

TEST(Adam, MisalignedArraysGiveTheSameBits) {
  const std::size_t kCapacity = 1100;
  const State start(kCapacity);
  const UpdateStep step = step_of(true, true);
  for (std::size_t shift = 0; shift < 33; ++shift) {
    State expected = start;
    expected.run_reference(step, DType::kBF16, 2, shift, shift + 1024);
    test::for_each_simd_target([&] {
      State got = start;
      apply_update(step, got.buffers(DType::kBF16, 2, shift), 0, 1024);
      ASSERT_TRUE(same_bits(expected, got)) << "shift " << shift;
    });
  }
}

TEST(Adam, ChunksAndThreadsGiveTheSameBits) {
  const std::size_t kElements = 10007;
  const State start(kElements);
  const UpdateStep step = step_of(true, true);
  State expected = start;
  expected.run_reference(step, DType::kBF16, 2, 0, kElements);
  for (const std::size_t chunk : {1UL, 13UL, 100UL, 512UL, 4096UL, 20000UL}) {
    for (const std::size_t threads : {1UL, 2UL, 5UL}) {
      State got = start;
      const UpdateBuffers buffers = got.buffers(DType::kBF16, 2);
      std::vector<std::thread> pool;
      for (std::size_t t = 0; t < threads; ++t) {
        // Neighbouring chunks belong to different threads: a store beyond a chunk's end would race
        // (tsan) or differ.
        pool.emplace_back([=] {
          for (std::size_t at = t * chunk; at < kElements; at += threads * chunk) {
            apply_update(step, buffers, at, std::min(kElements, at + chunk));
          }
        });
      }
      for (auto& thread : pool) {
        thread.join();
      }
      EXPECT_TRUE(same_bits(expected, got)) << "chunk " << chunk << " threads " << threads;
    }
  }
}

TEST(Adam, NotFiniteGradientsStayVisible) {
  State state(64);
  state.g[3] = std::numeric_limits<float>::quiet_NaN();
  state.g[40] = std::numeric_limits<float>::infinity();
  apply_update(step_of(true, true), state.buffers(DType::kF32, 2), 0, 64);
  EXPECT_TRUE(std::isnan(state.p[3]) && std::isnan(f32_of(DType::kBF16, state.w16[3])));
  EXPECT_TRUE(std::isnan(state.p[40]) || std::isinf(state.p[40]));
  EXPECT_TRUE(std::isfinite(state.p[4]) && std::isfinite(state.p[41]));
}

AdamStep adam_constants(const UpdateConfig& config, double gradient_scale) {
  return std::get<AdamStep>(UpdateStep::make(config, 2, gradient_scale).rule);
}

TEST(Adam, ConstantsFollowTheFormulas) {
  const UpdateConfig config{
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.5};
  const AdamStep step = adam_constants(config, 0.25);
  EXPECT_FLOAT_EQ(step.step_size, static_cast<float>(0.01 / (1 - 0.81)));
  EXPECT_FLOAT_EQ(step.inverse_root_bias, static_cast<float>(1 / std::sqrt(1 - 0.9801)));
  EXPECT_FLOAT_EQ(step.decay, 0.005F);
  UpdateConfig plain = config;
  plain.bias_correction = false;
  plain.adamw = false;
  EXPECT_FLOAT_EQ(adam_constants(plain, 1).step_size, 0.01F);
  EXPECT_FLOAT_EQ(adam_constants(plain, 1).inverse_root_bias, 1.0F);
  EXPECT_FLOAT_EQ(adam_constants(plain, 1).decay, 0.5F);
}

struct OracleCase {
  const char* name;
  UpdateConfig config;
  // kinds whose result depends on the order of operations
  std::vector<int> left_out;
};
void PrintTo(const OracleCase& one, std::ostream* out) { *out << one.name; }

class AdamOracle : public ::testing::TestWithParam<OracleCase> {};

/// Beside tests/data/make_optimizers.py. Errors count by size: parameters over max(|p| so far, lr),
/// exp_avg over G, the greatest |g| so far (L2: |g| + wd |p|), exp_avg_sq over (1 - beta2) G^2.
TEST_P(AdamOracle, StaysWithinTheTolerance) {
  const OracleCase& oracle = GetParam();
  constexpr double kTolerance = 5e-6;
  constexpr int kSteps = 5;
  const test::OracleTensors tensors(test::source_path("tests/data/optimizers/") + oracle.name +
                                    ".safetensors");
  const auto start = tensors.get<float>("param");
  const auto grads = tensors.get<float>("grads");
  const auto kind = tensors.get<std::uint8_t>("kind");
  const auto want_p = tensors.get<float>("float64.param");
  const auto want_m = tensors.get<float>("float64.exp_avg");
  const auto want_v = tensors.get<float>("float64.exp_avg_sq");
  const std::size_t n = start.size();
  ASSERT_EQ(grads.size(), n * kSteps);

  std::vector<float> p = start;
  std::vector<float> m(n);
  std::vector<float> v(n);
  std::vector<double> p_max(n);
  std::vector<double> g_max(n);
  std::size_t compared = 0;
  for (int t = 0; t < kSteps; ++t) {
    const float* g = grads.data() + t * n;
    for (std::size_t i = 0; i < n; ++i) {
      const double decay = oracle.config.adamw ? 0 : oracle.config.weight_decay * std::abs(p[i]);
      p_max[i] = std::max<double>(p_max[i], std::abs(p[i]));
      g_max[i] = std::max(g_max[i], std::abs(g[i]) + decay);
    }
    apply_update(UpdateStep::make(oracle.config, t + 1, 1.0),
                 {.master = p.data(), .state = {m.data(), v.data()}, .gradient = g}, 0, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (std::ranges::find(oracle.left_out, kind[i]) != oracle.left_out.end()) {
        continue;
      }
      const std::size_t k = t * n + i;
      const double g_scale = std::max(g_max[i], 1e-30);
      const double v_scale = std::max((1 - oracle.config.beta2) * g_scale * g_scale, 1e-38);
      const double p_scale = std::max(p_max[i], oracle.config.lr);
      ASSERT_NEAR(p[i], want_p[k], kTolerance * p_scale) << "p " << i << " kind " << +kind[i];
      ASSERT_NEAR(m[i], want_m[k], kTolerance * g_scale) << "m " << i << " kind " << +kind[i];
      ASSERT_NEAR(v[i], want_v[k], kTolerance * v_scale) << "v " << i << " kind " << +kind[i];
      ++compared;
    }
  }
  EXPECT_GT(compared, n * kSteps * 8 / 10);
}

constexpr int kDenormalGradient = 2;

INSTANTIATE_TEST_SUITE_P(
    Files, AdamOracle,
    ::testing::Values(OracleCase{"adamw", {.lr = 1e-3, .weight_decay = 0.01}, {}},
                      OracleCase{"l2_no_bias_correction",
                                 {.lr = 2e-3,
                                  .beta1 = 0.8,
                                  .beta2 = 0.99,
                                  .eps = 1e-6,
                                  .weight_decay = 0.1,
                                  .adamw = false,
                                  .bias_correction = false},
                                 {kDenormalGradient}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
