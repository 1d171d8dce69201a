// "Did you mean": distances, ties, words, and the wording of hints.
#include "runtime/util/nearest.hpp"

#include <array>

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Nearest, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("stage", "stge"), 1U);
  EXPECT_EQ(edit_distance("stage", "satge"), 1U) << "a swap of neighbours is one slip";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("--Batch-Size", "--batch_size"), 0U) << "spelling, not a slip";
}

TEST(Nearest, KnowsNamesByTheirWords) {
  EXPECT_EQ(name_distance("warmup_steps", "warmup_num_steps"), 2U);
  EXPECT_EQ(name_distance("batch_size_train", "train_batch_size"), 1U);
  EXPECT_EQ(name_distance("stage", "page"), edit_distance("stage", "page"));
}

TEST(Nearest, TakesTheClosestAndTheFirstOfEquals) {
  constexpr std::array<std::string_view, 3> kNames = {"lr", "eps", "betas"};
  EXPECT_EQ(nearest_name("beta", kNames), "betas");
  EXPECT_EQ(nearest_name("xr", kNames), "lr");
  constexpr std::array<std::string_view, 2> kTie = {"ab", "ac"};
  EXPECT_EQ(nearest_name("ad", kTie), "ab");
  EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(Nearest, HintsAskOrInform) {
  constexpr std::array<std::string_view, 2> kNames = {"--steps", "--stage"};
  EXPECT_EQ(likely_name("--step", kNames), "--steps");
  EXPECT_EQ(likely_name("--wandb_project", kNames), "");
  EXPECT_EQ(name_hint("--step", kNames), "did you mean \"--steps\"?");
  EXPECT_EQ(name_hint("--wandb_project", kNames), "the nearest known name is \"--steps\"");
  EXPECT_EQ(name_hint("x", {}), "no name is known here");
}

}  // namespace
}  // namespace tandem
