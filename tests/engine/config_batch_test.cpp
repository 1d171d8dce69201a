// The batch triple: all eight combinations of what may be given, and the contradictions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/batch_triple.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

struct Triple {
  std::int64_t total, micro, steps;
  bool operator==(const Triple&) const = default;
};

Triple solved(Triple given, std::int64_t world_size, bool required = true) {
  BatchConfig batch{given.total, given.micro, given.steps};
  solve_batch(batch, {.origin = "ds.json", .world_size = world_size, .required = required});
  return {batch.train_batch_size, batch.micro_batch_size, batch.accumulation_steps};
}

std::string error_of(Triple given, std::int64_t world_size) {
  try {
    solved(given, world_size);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUserInput);
    return error.what();
  }
  return "no error";
}

TEST(BatchTriple, SixCombinationsHaveASolution) {
  const Triple expected{24, 3, 4};
  EXPECT_EQ(solved({24, 3, 4}, 2), expected);
  EXPECT_EQ(solved({24, 3, 0}, 2), expected);
  EXPECT_EQ(solved({24, 0, 4}, 2), expected);
  EXPECT_EQ(solved({0, 3, 4}, 2), expected);
  EXPECT_EQ(solved({24, 0, 0}, 2), (Triple{24, 12, 1}));
  EXPECT_EQ(solved({0, 3, 0}, 2), (Triple{6, 3, 1}));
}

TEST(BatchTriple, TwoCombinationsSayNoSize) {
  EXPECT_THAT(error_of({0, 0, 4}, 2), HasSubstr("gradient_accumulation_steps alone"));
  EXPECT_THAT(error_of({0, 0, 0}, 2), HasSubstr("give one of them"));
  EXPECT_EQ(solved({0, 0, 0}, 2, false), (Triple{0, 0, 0})) << "where no batch is needed";
}

TEST(BatchTriple, ContradictionsShowTheValuesAndTheRemedy) {
  const std::string all = error_of({16, 3, 2}, 2);
  EXPECT_THAT(all, HasSubstr("train_batch_size 16 is not train_micro_batch_size_per_gpu 3 x "
                             "gradient_accumulation_steps 2 x world size 2 = 12"));
  EXPECT_THAT(all, HasSubstr("set train_batch_size to 12"));
  EXPECT_THAT(error_of({16, 3, 0}, 2), HasSubstr("a multiple of 6, e.g. 12"));
  EXPECT_THAT(error_of({16, 0, 3}, 2), HasSubstr("a multiple of 6, e.g. 12"));
  EXPECT_THAT(error_of({5, 0, 0}, 2), HasSubstr("a multiple of 2, e.g. 4"));
  EXPECT_THAT(error_of({1, 0, 0}, 2), HasSubstr("a multiple of 2, e.g. 2"));
  EXPECT_THAT(error_of({1, 4, 0}, 1), HasSubstr("a multiple of 4, e.g. 4"));
}

}  // namespace
}  // namespace tandem
