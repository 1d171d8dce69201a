// Fresh weights: the published test vectors, the right distribution, the same bits for every
// partition.
#include "models/io/random_init.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "models/checkpoint_layout.hpp"

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
  constexpr std::string_view kName = "model.embed_tokens.weight";
  std::vector<float> whole(217);
  fill_normal(kName, 42, 0.02, 0, 217, whole.data());
  for (const std::int64_t step : {1, 3, 50}) {
    std::vector<float> parts(217);
    for (std::int64_t at = 0; at < 217; at += step) {
      fill_normal(kName, 42, 0.02, at, std::min<std::int64_t>(217, at + step), parts.data() + at);
    }
    EXPECT_EQ(parts, whole);
  }
}

TEST(IoRandomInit, SeedAndNameChangeTheValues) {
  std::vector<float> x(64);
  std::vector<float> y(64);
  std::vector<float> z(64);
  fill_normal("a", 1, 1.0, 0, 64, x.data());
  fill_normal("b", 1, 1.0, 0, 64, y.data());
  fill_normal("a", 2, 1.0, 0, 64, z.data());
  EXPECT_NE(x, y);
  EXPECT_NE(x, z);
}

TEST(IoRandomInit, HasTheMomentsOfANormalDistribution) {
  std::vector<float> values(1'000'000);
  fill_normal("w", 3, 0.02, 0, 1'000'000, values.data());
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
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, float>>{
           {"model.layers.0.input_layernorm.weight", 1},
           {"model.layers.0.self_attn.q_norm.weight", 1},
           {"transformer.h.0.ln_1.weight", 1},
           {"transformer.h.0.ln_1.bias", 0},
           {"model.layers.0.mlp.experts.down_proj_bias", 0}}) {
    std::vector<float> values(2, 9.0F);
    fill_initial({.name = name, .shape = {2}}, 1, {}, 0, 2, values.data());
    EXPECT_EQ(values, (std::vector<float>{value, value})) << name;
  }
  std::vector<float> values(2, 9.0F);
  fill_initial({.name = "model.norm.weight", .shape = {2}}, 1, {.norm = 0}, 0, 2, values.data());
  EXPECT_EQ(values, (std::vector<float>{0, 0})) << "Gemma's norms are around one";
}

}  // namespace
}  // namespace tandem
