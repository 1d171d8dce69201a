// Sums of ranks' values: one after another, and neighbours as a balanced tree, against the same in
// single elements.
#include "actors/collectives/rank_sum.hpp"

#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/util/random.hpp"

namespace tandem {
namespace {

constexpr std::size_t kCount = 2 * kNormTile + 100;

std::vector<std::vector<float>> values_of(std::uint32_t ranks) {
  Random random(5);
  std::vector<std::vector<float>> all(ranks + 1, std::vector<float>(kCount));
  for (auto& values : all) {
    for (float& value : values) {
      value = static_cast<float>(random.uniform() - 0.5);
    }
  }
  return all;
}

float tree_of(const std::vector<std::vector<float>>& all, std::size_t i, std::uint32_t first,
              std::uint32_t ranks) {
  return ranks == 1
             ? all[first][i]
             : tree_of(all, i, first, ranks / 2) + tree_of(all, i, first + ranks / 2, ranks / 2);
}

TEST(RankSum, AddsNeighboursAsATree) {
  for (const auto& [ranks, tree, adds] : {std::tuple{8U, 4U, true},
                                          {8U, 8U, false},
                                          {2U, 2U, true},
                                          {6U, 2U, false},
                                          {4U, 1U, true},
                                          {6U, 4U, true}}) {
    const auto all = values_of(ranks);
    std::vector<float> sum = all[ranks];
    std::vector<float> expected = sum;
    const std::uint32_t each = ranks % tree == 0 ? tree : 1;
    for (std::size_t i = 0; i < kCount; ++i) {
      float value = adds ? sum[i] : 0;
      for (std::uint32_t first = 0; first < ranks; first += each) {
        value += tree_of(all, i, first, each);
      }
      expected[i] = value;
    }
    GradientNorm norm;
    add_ranks(
        {.sum = sum.data(),
         .type = DType::kF32,
         .count = kCount,
         .mode = adds ? AccumulateMode::kAdd : AccumulateMode::kOverwrite,
         .ranks = ranks,
         .tree = tree},
        [&](std::uint32_t from) { return reinterpret_cast<const std::byte*>(all[from].data()); },
        &norm);
    EXPECT_EQ(sum, expected) << ranks << " ranks, trees of " << tree;
    GradientNorm of_sum;
    add_norm(expected.data(), DType::kF32, 0, kCount, of_sum);
    EXPECT_EQ(norm.sum_of_squares.value(), of_sum.sum_of_squares.value());
  }
}

// A rank's sum of four blocks, or of two, or of one, is a node of one tree.
TEST(RankSum, ATreeOfTreesIsTheTree) {
  const auto all = values_of(4);
  const auto added = [&](const std::vector<std::vector<float>>& ranks) {
    std::vector<float> sum(kCount);
    add_ranks(
        {.sum = sum.data(),
         .type = DType::kF32,
         .count = kCount,
         .mode = AccumulateMode::kOverwrite,
         .ranks = static_cast<std::uint32_t>(ranks.size()),
         .tree = static_cast<std::uint32_t>(ranks.size())},
        [&](std::uint32_t from) { return reinterpret_cast<const std::byte*>(ranks[from].data()); },
        nullptr);
    return sum;
  };
  const std::vector<float> whole = added({all[0], all[1], all[2], all[3]});
  EXPECT_EQ(added({added({all[0], all[1]}), added({all[2], all[3]})}), whole);
}

TEST(RankSum, TheFirstElementThatIsNotFiniteIsFound) {
  auto all = values_of(2);
  all[1][kNormTile + 7] = std::numeric_limits<float>::infinity();
  for (const std::uint32_t tree : {1U, 2U}) {
    std::vector<float> sum(kCount);
    GradientNorm norm;
    add_ranks(
        {.sum = sum.data(),
         .type = DType::kF32,
         .count = kCount,
         .mode = AccumulateMode::kOverwrite,
         .ranks = 2,
         .tree = tree},
        [&](std::uint32_t from) { return reinterpret_cast<const std::byte*>(all[from].data()); },
        &norm);
    EXPECT_EQ(norm.first_bad_element, static_cast<std::int64_t>(kNormTile + 7)) << tree;
  }
}

}  // namespace
}  // namespace tandem
