#include "actors/kernels/reduce.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/actors/simd_targets.hpp"

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Round to nearest even by comparing the distances to both neighbours, not by the kernel's trick.
std::uint16_t bf16_reference(std::uint32_t bits) {
  const std::uint32_t low = bits & 0xffff;
  const auto down = static_cast<std::uint16_t>(bits >> 16);
  if ((bits & 0x7f800000) == 0x7f800000) {
    const bool nan = (bits & 0x007fffff) != 0;
    return nan ? static_cast<std::uint16_t>(down | 0x40) : down;
  }
  if (low < 0x8000 || (low == 0x8000 && down % 2 == 0)) {
    return down;
  }
  return static_cast<std::uint16_t>(down + 1);  // carries into the exponent, up to infinity
}

float f32_of(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

TEST(Cast, RoundsEveryTopHalfToNearestEven) {
  std::vector<std::uint32_t> bits;
  for (const std::uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    for (std::uint32_t top = 0; top < 0x10000; ++top) {
      bits.push_back(top << 16 | low);
    }
  }
  testing::for_each_simd_target([&] {
    std::vector<std::uint16_t> got(bits.size());
    cast(bits.data(), DType::kF32, got.data(), DType::kBF16, 0, bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(got[i], bf16_reference(bits[i])) << std::hex << bits[i];
    }
  });
}

TEST(Cast, WidensEveryBf16Exactly) {
  std::vector<std::uint16_t> narrow(0x10000);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = static_cast<std::uint16_t>(i);
  }
  testing::for_each_simd_target([&] {
    std::vector<std::uint32_t> wide(narrow.size());
    cast(narrow.data(), DType::kBF16, wide.data(), DType::kF32, 0, narrow.size());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(wide[i], static_cast<std::uint32_t>(i) << 16);
    }
  });
}

TEST(Cast, TouchesOnlyItsRange) {
  const std::vector<float> from(80, 1.5F);
  testing::for_each_simd_target([&] {
    for (std::size_t end = 3; end < 70; ++end) {
      std::vector<std::uint16_t> to(80, 0xabcd);
      cast(from.data(), DType::kF32, to.data(), DType::kBF16, 3, end);
      for (std::size_t i = 0; i < to.size(); ++i) {
        ASSERT_EQ(to[i], i >= 3 && i < end ? 0x3fc0 : 0xabcd);
      }
    }
  });
}

struct Gradients {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
  std::vector<float> before;

  explicit Gradients(std::size_t n) : f32(n), bf16(n), before(n) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < n; ++i) {
      f32[i] = normal(random) * std::exp2(static_cast<float>(i % 61) - 30);
      before[i] = normal(random);
    }
    cast(f32.data(), DType::kF32, bf16.data(), DType::kBF16, 0, n);
  }
  const void* data(DType type) const {
    return type == DType::kF32 ? static_cast<const void*>(f32.data()) : bf16.data();
  }
  float value(DType type, std::size_t i) const {
    return type == DType::kF32 ? f32[i] : f32_of(bf16[i]);
  }
};

TEST(Accumulate, OverwritesAndAddsWithEqualBitsOnEveryTarget) {
  const Gradients gradients(2100);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const AccumulateMode mode : {AccumulateMode::kOverwrite, AccumulateMode::kAdd}) {
      for (std::size_t length = 0; length <= 257; ++length) {
        const std::size_t begin = length % 23;
        std::vector<float> expected = gradients.before;
        for (std::size_t i = begin; i < begin + length; ++i) {
          expected[i] = gradients.value(type, i) +
                        (mode == AccumulateMode::kAdd ? gradients.before[i] : 0.0F);
        }
        testing::for_each_simd_target([&] {
          std::vector<float> got = gradients.before;
          accumulate(got.data(), gradients.data(type), type, begin, begin + length, mode);
          ASSERT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)))
              << "length " << length;
        });
      }
    }
  }
}

/// The block sum as reduce.hpp defines it.
double block_sum(const float* values, std::size_t count) {
  double lanes[32] = {};
  for (std::size_t i = 0; i < count; ++i) {
    lanes[i % 32] += static_cast<double>(values[i]) * values[i];
  }
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) {
      lanes[k] += lanes[k + half];
    }
  }
  return lanes[0];
}

TEST(Norm, HasTheSameBitsOnEveryTargetChunkingAndSource) {
  const Gradients gradients(10007);
  const std::size_t n = gradients.f32.size();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = gradients.value(type, i);
    }
    ExactSum expected;
    for (std::size_t at = 0; at < n; at += kNormBlock) {
      expected.add(block_sum(values.data() + at, std::min(kNormBlock, n - at)));
    }
    testing::for_each_simd_target([&] {
      for (const std::size_t chunk : {512UL, 1024UL, 5120UL, 20480UL}) {
        GradientNorm accumulated;
        GradientNorm alone;
        std::vector<float> accumulator(n);
        for (std::size_t at = 0; at < n; at += chunk) {
          GradientNorm part;
          const std::size_t end = std::min(n, at + chunk);
          accumulate_with_norm(accumulator.data(), gradients.data(type), type, at, end,
                               AccumulateMode::kOverwrite, part);
          accumulated.merge(part);
          add_norm(gradients.data(type), type, at, end, alone);
        }
        EXPECT_EQ(accumulated.sum_of_squares, expected);
        EXPECT_EQ(alone.sum_of_squares, expected);
        EXPECT_EQ(accumulated.first_bad_element, -1);
        EXPECT_EQ(0, std::memcmp(accumulator.data(), values.data(), n * sizeof(float)));
      }
    });
  }
}

TEST(Norm, NamesTheFirstBadElement) {
  for (const float bad : {kInf, -kInf, kNan}) {
    for (const std::size_t position : {0UL, 511UL, 512UL, 700UL, 1499UL}) {
      Gradients gradients(1500);
      gradients.f32[position] = bad;
      gradients.f32[1499] = kNan;
      cast(gradients.f32.data(), DType::kF32, gradients.bf16.data(), DType::kBF16, 0, 1500);
      for (const DType type : {DType::kF32, DType::kBF16}) {
        testing::for_each_simd_target([&] {
          GradientNorm late;
          GradientNorm norm;
          add_norm(gradients.data(type), type, 1024, 1500, late);
          add_norm(gradients.data(type), type, 0, 1024, norm);
          norm.merge(late);
          EXPECT_EQ(norm.first_bad_element, static_cast<std::int64_t>(position));
          EXPECT_FALSE(norm.sum_of_squares.is_finite());
        });
      }
    }
  }
}

TEST(Norm, GreatestFloatsDoNotOverflowABlock) {
  const std::vector<float> values(kNormBlock, std::numeric_limits<float>::max());
  GradientNorm norm;
  add_norm(values.data(), DType::kF32, 0, kNormBlock, norm);
  EXPECT_EQ(norm.first_bad_element, -1);
  EXPECT_NEAR(std::sqrt(norm.sum_of_squares.value() / kNormBlock), values[0], 1e31);
}

}  // namespace
}  // namespace tandem
