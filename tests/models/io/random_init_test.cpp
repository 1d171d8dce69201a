// Fresh weights: the published test vectors, the right distribution, the same bits for every
// partition.
#include "models/io/random_init.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(IoRandomInit, PhiloxGivesThePublishedVectors) {
  // Known answers of the Random123 distribution, philox4x32 with 10 rounds.
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(IoRandomInit, QuantilesInvertTheDistribution) {
  for (const double p :
       {1e-10, 1e-9, 1e-6, 0.001, 0.02, 0.074, 0.076, 0.3, 0.5, 0.6, 0.93, 0.999, 1 - 1e-9}) {
    const double x = normal_quantile(p);
    const double again = 0.5 * std::erfc(-x / std::sqrt(2.0));
    EXPECT_NEAR(again / p, 1.0, 1e-6 * std::max(1.0, std::fabs(x)) * 1e-6) << p;
  }
}

TEST(IoRandomInit, EveryPartitionGivesTheSameBits) {
  const CheckpointTensor tensor{.name = "model.embed_tokens.weight", .shape = {7, 31}};
  std::vector<float> whole(217);
  fill_initial(tensor, 42, 0.02, 0, 217, whole.data());
  for (const std::int64_t step : {1, 3, 50}) {
    std::vector<float> parts(217);
    for (std::int64_t at = 0; at < 217; at += step) {
      fill_initial(tensor, 42, 0.02, at, std::min<std::int64_t>(217, at + step), parts.data() + at);
    }
    EXPECT_EQ(parts, whole);
  }
}

TEST(IoRandomInit, SeedAndNameChangeTheValues) {
  const CheckpointTensor a{.name = "a", .shape = {64}};
  const CheckpointTensor b{.name = "b", .shape = {64}};
  std::vector<float> x(64);
  std::vector<float> y(64);
  std::vector<float> z(64);
  fill_initial(a, 1, 1.0, 0, 64, x.data());
  fill_initial(b, 1, 1.0, 0, 64, y.data());
  fill_initial(a, 2, 1.0, 0, 64, z.data());
  EXPECT_NE(x, y);
  EXPECT_NE(x, z);
}

TEST(IoRandomInit, HasTheMomentsOfANormalDistribution) {
  const CheckpointTensor tensor{.name = "w", .shape = {1'000'000}};
  std::vector<float> values(1'000'000);
  fill_initial(tensor, 3, 0.02, 0, 1'000'000, values.data());
  double mean = 0;
  double square = 0;
  double fourth = 0;
  for (const float value : values) {
    const double v = value / 0.02;
    mean += v * 1e-6;
    square += v * v * 1e-6;
    fourth += v * v * v * v * 1e-6;
  }
  EXPECT_NEAR(mean, 0, 0.005);  // five standard errors
  EXPECT_NEAR(square, 1, 0.0075);
  EXPECT_NEAR(fourth, 3, 0.05);
}

TEST(IoRandomInit, NormsAreOnesAndBiasesZeros) {
  std::vector<float> values(2, 9.0F);
  fill_initial({.name = "n", .shape = {2}, .init = TensorInit::kOnes}, 1, 0.02, 0, 2,
               values.data());
  EXPECT_EQ(values, (std::vector<float>{1, 1}));
  fill_initial({.name = "b", .shape = {2}, .init = TensorInit::kZeros}, 1, 0.02, 0, 2,
               values.data());
  EXPECT_EQ(values, (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace tandem
