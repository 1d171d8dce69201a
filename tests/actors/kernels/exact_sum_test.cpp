#include "actors/kernels/exact_sum.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tandem {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kLeast = std::numeric_limits<double>::denorm_min();

ExactSum sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) {
    sum.add(value);
  }
  return sum;
}

std::vector<double> wide_values(std::size_t count, int exponent_min, int exponent_max,
                                unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> mantissa(0, 1);
  std::uniform_int_distribution<int> exponent(exponent_min, exponent_max);
  std::vector<double> values(count);
  for (double& value : values) {
    value = std::ldexp(mantissa(random), exponent(random));
  }
  return values;
}

TEST(ExactSum, OfOneValueIsThatValue) {
  std::vector<double> values = wide_values(2000, -1080, 1023, 1);
  values.insert(values.end(),
                {0.0, -0.0, 1.0, kMax, kLeast, 3 * kLeast, std::numeric_limits<double>::min(),
                 std::nextafter(std::numeric_limits<double>::min(), 0.0)});
  for (const double value : values) {
    EXPECT_EQ(sum_of({value}).value(), value);
  }
}

TEST(ExactSum, AnyOrderAndPartitionGivesEqualBits) {
  std::vector<double> values = wide_values(5000, -1070, 1000, 2);
  const ExactSum expected = sum_of(values);
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> parts(1 + random() % 9);
    for (const double value : values) {
      parts[random() % parts.size()].add(value);
    }
    std::shuffle(parts.begin(), parts.end(), random);
    ExactSum merged;
    std::array<std::uint64_t, ExactSum::kLimbs> reduced{};  // as an integer all-reduce adds them up
    for (ExactSum& part : parts) {
      merged.merge(part);
      const auto limbs = part.limbs();
      std::ranges::transform(reduced, limbs, reduced.begin(), std::plus<>());
    }
    EXPECT_EQ(merged, expected);
    EXPECT_EQ(merged.value(), expected.value());
    EXPECT_EQ(ExactSum::from_limbs(reduced), expected);
  }
}

TEST(ExactSum, IsTheCorrectlyRoundedSum) {
  // Values with 53 bits within 2^9 of each other and few of them: the sum is exact in a 128-bit
  // integer.
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    unsigned __int128 exact = 0;
    ExactSum sum;
    const int scale = static_cast<int>(random() % 1900) - 1000;
    const std::size_t count = 1 + random() % 40;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t mantissa = random() >> 11;
      const unsigned shift = random() % 10;
      exact += static_cast<unsigned __int128>(mantissa) << shift;
      sum.add(std::ldexp(static_cast<double>(mantissa), static_cast<int>(shift) + scale));
    }
    // An x86 long double has 64 bits: round the integer to 53 by hand.
    int bits = 0;
    while ((exact >> bits) != 0) {
      ++bits;
    }
    const int drop = std::max(bits - 53, 0);
    auto kept = static_cast<std::uint64_t>(exact >> drop);
    if (drop > 0) {
      const unsigned __int128 half = static_cast<unsigned __int128>(1) << (drop - 1);
      const unsigned __int128 rest = exact - (static_cast<unsigned __int128>(kept) << drop);
      kept += rest > half || (rest == half && kept % 2 == 1) ? 1 : 0;
    }
    ASSERT_EQ(sum.value(), std::ldexp(static_cast<double>(kept), drop + scale)) << round;
  }
}

TEST(ExactSum, AgreesWithSortedLongDoubles) {
  std::vector<double> values = wide_values(100000, -40, 0, 11);
  std::ranges::sort(values);
  long double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  EXPECT_NEAR(sum_of(values).value(), static_cast<double>(sum), 1e-9);
}

TEST(ExactSum, TiesGoToEven) {
  const double ulp = std::ldexp(1.0, -52);
  EXPECT_EQ(sum_of({1.0, ulp / 2}).value(), 1.0);
  EXPECT_EQ(sum_of({1.0 + ulp, ulp / 2}).value(), 1.0 + 2 * ulp);
  EXPECT_EQ(sum_of({1.0, ulp / 2, kLeast}).value(), 1.0 + ulp);
  EXPECT_EQ(sum_of({1.0, ulp / 4}).value(), 1.0);
}

TEST(ExactSum, CoversTheWholeRangeOfDoubles) {
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) {
    sum.add(kMax);
  }
  EXPECT_EQ(sum.value(), std::numeric_limits<double>::infinity());  // beyond the greatest double
  EXPECT_TRUE(sum.is_finite());  // though nothing infinite was added
  EXPECT_EQ(sum_of({kLeast, kLeast, kLeast}).value(), 3 * kLeast);
  EXPECT_EQ(sum_of({kMax, kLeast}).value(), kMax);
  EXPECT_EQ(ExactSum().value(), 0.0);
}

TEST(ExactSum, FlagsInfinityAndNan) {
  ExactSum infinite = sum_of({1.0, std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(std::isinf(infinite.value()));
  EXPECT_FALSE(infinite.is_finite());
  ExactSum nan = sum_of({std::numeric_limits<double>::quiet_NaN(), 2.0});
  EXPECT_TRUE(std::isnan(nan.value()));
  infinite.merge(nan);
  EXPECT_TRUE(std::isnan(infinite.value()));
  EXPECT_TRUE(std::isnan(ExactSum::from_limbs(nan.limbs()).value()));
}

TEST(ExactSum, CarriesSurviveManyAdditionsAndMerges) {
  // Each addition sets the most pending carries there can be; doubling by merges makes 2^40 of
  // them.
  ExactSum sum;
  const double value = std::nextafter(std::ldexp(1.0, 100), 0.0);
  for (int i = 0; i < 1024; ++i) {
    sum.add(value);
  }
  for (int i = 0; i < 30; ++i) {
    const ExactSum same = sum;
    sum.merge(same);
  }
  EXPECT_EQ(sum.value(), std::ldexp(value, 40));
}

TEST(ExactSumDeathTest, RefusesNegativeValues) {
  EXPECT_DEATH(
      {
        ExactSum sum;
        sum.add(-1.0);
      },
      "non-negative");
}

}  // namespace
}  // namespace tandem
