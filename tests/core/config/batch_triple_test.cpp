// The batch triple: all eight combinations of what may be given, and the contradictions.
#include "engine/config/batch_triple.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

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
  return error_text([&] { solved(given, world_size); });
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
  for (const std::int64_t world : {1, 2, 4}) {
    EXPECT_THAT(
        error_of({0, 0, 4}, world),
        HasSubstr("neither train_batch_size (none) nor train_micro_batch_size_per_gpu (none) is "
                  "given, with gradient_accumulation_steps 4; give one"));
    EXPECT_THAT(error_of({0, 0, 0}, world),
                HasSubstr("with gradient_accumulation_steps none; give one"));
    EXPECT_EQ(solved({0, 0, 0}, world, false), (Triple{0, 0, 0})) << "where no batch is needed";
  }
}

/// All eight ways to give some of the three, right and wrong, against the rule written down once
/// more.
TEST(BatchTriple, EveryCombinationAtEveryWorldSize) {
  int solutions = 0;
  int contradictions = 0;
  for (const std::int64_t world : {1, 2, 4}) {
    for (const std::int64_t total : {0, 1, 8, 12, 16, 24}) {
      for (const std::int64_t micro : {0, 1, 2, 3}) {
        for (const std::int64_t steps : {0, 1, 2, 4}) {
          SCOPED_TRACE(fmt::format("{} = {} x {} x {}", total, micro, steps, world));
          if (total == 0 && micro == 0) {
            EXPECT_THAT(error_of({total, micro, steps}, world), HasSubstr("give one of them"));
            continue;
          }
          const std::int64_t n = total == 0 && steps == 0 ? 1 : steps;
          const std::int64_t g = n != 0 ? n : micro != 0 ? total / micro / world : 1;
          const std::int64_t m = micro != 0 ? micro : total / world / g;
          const std::int64_t t = total != 0 ? total : m * g * world;
          if (m > 0 && g > 0 && t == m * g * world) {
            ++solutions;
            EXPECT_EQ(solved({total, micro, steps}, world), (Triple{t, m, g}));
          } else {
            ++contradictions;
            const std::string message = error_of({total, micro, steps}, world);
            EXPECT_THAT(message, HasSubstr(fmt::format("train_batch_size {} is not", t)));
            EXPECT_THAT(message,
                        HasSubstr(fmt::format("gpu {} x gradient_accumulation_steps {} x world "
                                              "size {} = {}",
                                              m, g, world, m * g * world)));
          }
        }
      }
    }
  }
  EXPECT_GT(solutions, 60);
  EXPECT_GT(contradictions, 60);
}

TEST(BatchTriple, ProductsBeyondEverySizeAreRefused) {
  EXPECT_THAT(error_of({0, 2147483647, 2147483647}, 4), HasSubstr("above 2147483647"));
  EXPECT_THAT(error_of({16, 2147483647, 2147483647}, 1048576),
              HasSubstr("train_batch_size 16 is not"));
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
