#include "actors/kernels/reduce.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/actors/kernels/float16_reference.hpp"
#include "tests/actors/kernels/simd_targets.hpp"

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Cast, RoundsEveryTopHalfToNearestEven) {
  std::vector<std::uint32_t> bits;
  for (const std::uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    for (std::uint32_t top = 0; top < 0x10000; ++top) {
      bits.push_back(top << 16 | low);
    }
  }
  test::for_each_simd_target([&] {
    std::vector<std::uint16_t> got(bits.size());
    cast(bits.data(), DType::kF32, got.data(), DType::kBF16, 0, bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(got[i], test::bf16_of(std::bit_cast<float>(bits[i]))) << std::hex << bits[i];
    }
  });
}

/// Every upper half with what lies at, and next to, the boundaries of rounding; and for each
/// denormal the middles.
std::vector<std::uint32_t> hard_cases_of_f16() {
  std::vector<std::uint32_t> bits;
  for (const std::uint32_t low : {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x1fffU, 0x2fffU,
                                  0x3000U, 0x3001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    for (std::uint32_t top = 0; top < 0x10000; ++top) {
      bits.push_back(top << 16 | low);
    }
  }
  for (int units = 0; units <= 1024; ++units) {
    const float middle = std::ldexp(static_cast<float>(units) + 0.5F, -24);
    for (const float sign : {1.0F, -1.0F}) {
      for (const float value :
           {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1.0F)}) {
        bits.push_back(std::bit_cast<std::uint32_t>(sign * value));
      }
    }
  }
  return bits;
}

TEST(Cast, RoundsToF16ToNearestEven) {
  const std::vector<std::uint32_t> bits = hard_cases_of_f16();
  test::for_each_simd_target([&] {
    std::vector<std::uint16_t> got(bits.size());
    cast(bits.data(), DType::kF32, got.data(), DType::kF16, 0, bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(got[i], test::f16_of(std::bit_cast<float>(bits[i]))) << std::hex << bits[i];
    }
  });
}

TEST(Cast, KnownF16Values) {
  const std::vector<float> values = {1.0F,       -2.0F,    65504.0F, 65519.996F,
                                     65520.0F,   1e9F,     0x1p-24F, 0x1p-25F,
                                     0x1.8p-24F, 0x1p-14F, -0.0F,    1.0009766F};
  const std::vector<std::uint16_t> expected = {0x3c00, 0xc000, 0x7bff, 0x7bff, 0x7c00, 0x7c00,
                                               0x0001, 0x0000, 0x0002, 0x0400, 0x8000, 0x3c01};
  test::for_each_simd_target([&] {
    std::vector<std::uint16_t> got(values.size());
    cast(values.data(), DType::kF32, got.data(), DType::kF16, 0, values.size());
    EXPECT_EQ(got, expected);
  });
}

TEST(Cast, WidensEveryF16Exactly) {
  std::vector<std::uint16_t> narrow(0x10000);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = static_cast<std::uint16_t>(i);
  }
  test::for_each_simd_target([&] {
    std::vector<std::uint32_t> wide(narrow.size());
    cast(narrow.data(), DType::kF16, wide.data(), DType::kF32, 0, narrow.size());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(wide[i], std::bit_cast<std::uint32_t>(test::f32_of_f16(narrow[i])))
          << std::hex << i;
    }
  });
}

TEST(Cast, WidensEveryBf16Exactly) {
  std::vector<std::uint16_t> narrow(0x10000);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = static_cast<std::uint16_t>(i);
  }
  test::for_each_simd_target([&] {
    std::vector<std::uint32_t> wide(narrow.size());
    cast(narrow.data(), DType::kBF16, wide.data(), DType::kF32, 0, narrow.size());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(wide[i], static_cast<std::uint32_t>(i) << 16);
    }
  });
}

TEST(Cast, TouchesOnlyItsRange) {
  const std::vector<float> from(80, 1.5F);
  test::for_each_simd_target([&] {
    for (const auto& [type, cast_value] :
         {std::pair{DType::kBF16, 0x3fc0}, {DType::kF16, 0x3e00}}) {
      for (std::size_t end = 3; end < 70; ++end) {
        std::vector<std::uint16_t> to(80, 0xabcd);
        cast(from.data(), DType::kF32, to.data(), type, 3, end);
        for (std::size_t i = 0; i < to.size(); ++i) {
          ASSERT_EQ(to[i], i >= 3 && i < end ? cast_value : 0xabcd);
        }
      }
    }
  });
}

TEST(Cast, PastTheCachesHasTheSameBitsAndWritesNoOthers) {
  constexpr std::size_t kLongest = 300;
  constexpr float kUntouched = -7;
  std::vector<std::uint32_t> source(kLongest + 32);
  std::mt19937 random(11);
  for (std::uint32_t& word : source) {
    word = random();  // NaNs too
  }
  test::for_each_simd_target([&] {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<float> expected(kLongest);
      for (std::size_t from = 0; from < 4; ++from) {
        // misaligned
        const auto* values = reinterpret_cast<const std::byte*>(source.data()) + from;
        std::vector<std::byte> aligned(kLongest * bytes_of(type));
        std::memcpy(aligned.data(), values, aligned.size());
        cast(aligned.data(), type, expected.data(), DType::kF32, 0, kLongest);
        for (std::size_t to = 0; to < 17; ++to) {
          for (std::size_t count = 0; count <= kLongest; count += count < 140 ? 1 : 23) {
            std::vector<float> target(to + count + 16, kUntouched);
            widen_past_caches(values, type, target.data() + to, count);
            ASSERT_EQ(0, std::memcmp(target.data() + to, expected.data(), count * sizeof(float)))
                << count << " to " << to;
            for (std::size_t i = 0; i < target.size(); ++i) {
              ASSERT_TRUE((i >= to && i < to + count) || target[i] == kUntouched) << i;
            }
          }
        }
      }
    }
  });
}

struct Gradients {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
  std::vector<std::uint16_t> f16;
  std::vector<float> before;

  explicit Gradients(std::size_t n) : f32(n), bf16(n), f16(n), before(n) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < n; ++i) {
      f32[i] = normal(random) * std::exp2(static_cast<float>(i % 44) - 30);  // within fp16's range
      before[i] = normal(random);
    }
    narrow();
  }
  void narrow() {
    cast(f32.data(), DType::kF32, bf16.data(), DType::kBF16, 0, f32.size());
    cast(f32.data(), DType::kF32, f16.data(), DType::kF16, 0, f32.size());
  }
  const void* data(DType type) const {
    return type == DType::kF32    ? static_cast<const void*>(f32.data())
           : type == DType::kBF16 ? bf16.data()
                                  : f16.data();
  }
  float value(DType type, std::size_t i) const {
    return type == DType::kF32    ? f32[i]
           : type == DType::kBF16 ? test::f32_of_bf16(bf16[i])
                                  : test::f32_of_f16(f16[i]);
  }
};

TEST(Accumulate, OverwritesAndAddsWithEqualBitsOnEveryTarget) {
  const Gradients gradients(2100);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const AccumulateMode mode : {AccumulateMode::kOverwrite, AccumulateMode::kAdd}) {
      for (std::size_t length = 0; length <= 257; ++length) {
        const std::size_t begin = length % 23;
        std::vector<float> expected = gradients.before;
        for (std::size_t i = begin; i < begin + length; ++i) {
          const float value = gradients.value(type, i);
          expected[i] = mode == AccumulateMode::kAdd ? gradients.before[i] + value : value;
        }
        test::for_each_simd_target([&] {
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
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = gradients.value(type, i);
    }
    ExactSum expected;
    for (std::size_t at = 0; at < n; at += kNormTile) {
      expected.add(block_sum(values.data() + at, std::min(kNormTile, n - at)));
    }
    test::for_each_simd_target([&] {
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
      gradients.narrow();
      for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
        test::for_each_simd_target([&] {
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
  const std::vector<float> values(kNormTile, std::numeric_limits<float>::max());
  GradientNorm norm;
  add_norm(values.data(), DType::kF32, 0, kNormTile, norm);
  EXPECT_EQ(norm.first_bad_element, -1);
  EXPECT_NEAR(std::sqrt(norm.sum_of_squares.value() / kNormTile), values[0], 1e31);
}

}  // namespace
}  // namespace tandem
