// DeepSpeed's `elasticity` block beside what DeepSpeed itself computes, and its errors.
#include "engine/config/elasticity.hpp"

#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

struct Reference {
  ElasticRule rule;
  std::int64_t world;
  std::int64_t batch;  // 0: none, or an error in DeepSpeed
  std::size_t worlds;  // how many numbers of ranks may share it
  std::int64_t micro_batch;
};

// compute_elastic_config(config, version, world_size=world) of deepspeed/elasticity at DeepSpeed's
// commit edaa72212: the cases of its own tests, then some that were drawn at random.
const std::vector<Reference> kReferences = {
    // clang-format off
    {{10000, {8, 12, 16, 17}, 32, 1500, 1, true, false}, 64, 9792, 23, 17},
    {{10000, {8, 12, 16, 17}, 32, 1500, 1, true, false}, 128, 0, 0, 0},
    {{32, {1, 2, 3, 7}, 1, 1500, 1, true, false}, 4, 24, 8, 3},
    {{100, {8, 10, 12}, 1, 1500, 1, true, false}, 4, 96, 7, 12},
    {{4, {1, 2, 3, 4}, 1, 4, 1, true, false}, 2, 4, 3, 2},
    {{10000, {8, 12, 16, 17}, 32, 1500, 8, true, true}, 16, 9984, 1, 16},
    {{2000, {2, 4, 6}, 1, 10000, 1, true, true}, 2, 1680, 32, 6},
    {{64, {4, 8}, 16, 16, 8, true, true}, 16, 64, 1, 4},
    {{2000, {24, 24}, 1, 1500, 4, true, false}, 2, 1440, 12, 24},
    {{100, {6}, 4, 10000, 2, true, true}, 8, 96, 1, 6},
    {{10000, {2, 24, 16}, 4, 10000, 1, true, false}, 1, 0, 0, 0},
    {{64, {2, 4}, 2, 1500, 1, true, true}, 64, 0, 1, 4},
    {{16, {5}, 1, 64, 8, true, false}, 6, 0, 0, 0},
    {{100, {32, 24, 6}, 8, 10000, 2, false, false}, 32, 0, 0, 0},
    {{100, {3, 8, 32, 2}, 1, 10000, 8, true, true}, 1, 0, 0, 0},
    {{10000, {3, 3}, 1, 8, 2, true, true}, 12, 9972, 1, 3},
    {{16, {24, 3, 2, 12}, 8, 1500, 1, true, false}, 2, 0, 0, 0},
    {{2000, {24, 2, 24}, 2, 8, 8, true, false}, 32, 0, 0, 0},
    {{100, {1}, 8, 64, 4, false, true}, 6, 96, 1, 1},
    {{10000, {2}, 1, 64, 1, false, false}, 6, 5040, 27, 2},
    {{10000, {3, 24}, 1, 10000, 1, true, true}, 6, 7560, 48, 3},
    {{64, {5, 4, 6, 17}, 2, 64, 1, true, false}, 12, 60, 8, 5},
    {{2000, {8, 12, 2}, 1, 10000, 1, false, false}, 32, 0, 0, 0},
    {{4096, {32}, 1, 64, 1, true, true}, 1, 3840, 15, 32},
    {{500, {32}, 1, 10000, 2, true, false}, 6, 384, 6, 32},
    {{16, {24, 3, 17, 8}, 8, 10000, 4, true, true}, 2, 0, 0, 0},
    {{4096, {4, 4, 5, 12}, 2, 10000, 2, true, false}, 3, 3360, 39, 5},
    {{4096, {1}, 1, 10000, 2, true, false}, 1, 2520, 48, 1},
    {{4096, {6, 16}, 1, 8, 4, true, false}, 4, 3840, 7, 16},
    {{10000, {32, 16, 32, 5}, 8, 1500, 2, true, false}, 8, 8400, 36, 5},
    {{50000, {24, 32}, 1, 10000, 2, true, false}, 32, 0, 0, 0},
    {{64, {32, 5}, 1, 64, 8, true, true}, 32, 0, 0, 0},
    // clang-format on
};

TEST(Elasticity, ComputesWhatDeepSpeedComputes) {
  for (const Reference& r : kReferences) {
    SCOPED_TRACE(fmt::format("{} of {} for {}", r.rule.most_batch,
                             fmt::join(r.rule.micro_batches, ", "), r.world));
    if (r.batch == 0) {
      EXPECT_THAT([&] { (void)solve_elastic(r.rule, r.world, "ds.json"); },
                  ThrowsError(ExitCode::kUserInput, HasSubstr("ds.json: elasticity")));
      continue;
    }
    const ElasticBatch made = solve_elastic(r.rule, r.world, "ds.json");
    EXPECT_EQ(made.batch, r.batch);
    EXPECT_EQ(made.worlds.size(), r.worlds);
    EXPECT_EQ(made.micro_batch, r.micro_batch);
  }
}

Config parse(const std::string& elastic, const std::string& more, std::int64_t world) {
  return parse_config(fmt::format(R"({{"elasticity": {{"enabled": true{}}}{}}})", elastic, more),
                      "ds.json", world);
}

constexpr const char* kBlock =
    R"(, "max_train_batch_size": 64, "micro_batch_sizes": [2, 3], "max_gpus": 8, "version": 0.1)";

TEST(Elasticity, TheBatchStaysOnEveryNumberOfRanksThatSharesIt) {
  const std::vector<std::int64_t> worlds =
      solve_elastic({.most_batch = 64, .micro_batches = {2, 3}, .most_ranks = 8, .by_hosts = false},
                    1, "")
          .worlds;
  EXPECT_GT(worlds.size(), 3U);
  for (const std::int64_t world : worlds) {
    const Config config = parse(kBlock, "", world);
    EXPECT_EQ(config.batch.train_batch_size, parse(kBlock, "", 1).batch.train_batch_size);
    EXPECT_EQ(config.batch.micro_batch_size * config.batch.accumulation_steps * world,
              config.batch.train_batch_size);
    EXPECT_EQ(resolved_json(parse_config(resolved_json(config), "again", world)),
              resolved_json(config));
  }
}

TEST(Elasticity, ABatchKeyBesideItSaysTheSameOrIsIgnored) {
  const std::int64_t batch = parse(kBlock, "", 2).batch.train_batch_size;
  EXPECT_EQ(
      parse(kBlock, fmt::format(R"(, "train_batch_size": {})", batch), 2).batch.train_batch_size,
      batch);
  EXPECT_EQ(
      error_text([] { (void)parse(kBlock, R"(, "train_batch_size": 7)", 2); }),
      fmt::format("[config] ds.json: train_batch_size is 7, and elasticity makes it {}; leave "
                  "it out, or set elasticity.ignore_non_elastic_batch_info to true",
                  batch));
  const Config ignored = parse(std::string(kBlock) + R"(, "ignore_non_elastic_batch_info": true)",
                               R"(, "train_batch_size": 7)", 2);
  EXPECT_EQ(ignored.batch.train_batch_size, batch);
  EXPECT_THAT(report_lines(ignored),
              ::testing::Contains(
                  fmt::format("train_batch_size: {}  not applicable: elasticity decides", batch)));
}

TEST(Elasticity, WhatCannotBeMeantIsOneLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "elasticity.max_train_batch_size is missing"},
      {R"(, "max_train_batch_size": 8)", "elasticity.micro_batch_sizes is missing"},
      {R"(, "max_train_batch_size": 0, "micro_batch_sizes": [1])", "at least 1"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [1, -1])", "is [1,-1]; write a list"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [0.5])", "is [0.5]; write a list"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [])", "is []; write a list"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": 5)", "write a list"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [9])",
       "micro_batch_sizes has 9, above max_train_batch_size 8"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [1], "min_gpus": 3, "max_gpus": 2)",
       "elasticity.min_gpus is 3, above elasticity.max_gpus 2"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [1], "version": 0.3)",
       "elasticity.version is 0.3; it must be 0.1 or 0.2"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [1], "model_parallel_size": 2)",
       "elasticity.model_parallel_size is refused"},
      {R"(, "max_train_batch_size": 8, "micro_batch_sizes": [1], "version": 0.1, "min_gpus": 4)",
       "elasticity has no batch for 2 ranks: 6 can be shared by 6"},
  };
  for (const auto& [members, why] : cases) {
    EXPECT_THAT(error_text([&] { (void)parse(members, "", 2); }), HasSubstr(why));
  }
}

}  // namespace
}  // namespace tandem
