// Learning-rate schedules against DeepSpeed's own figures, and at their corners.
#include "engine/schedule/schedule.hpp"

#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using simdjson::dom::element;

constexpr double kRelative = 1e-12;

testing::AssertionResult close(double ours, double theirs) {
  if (std::abs(ours - theirs) <= kRelative * std::abs(theirs)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << fmt::format("{} instead of {}", ours, theirs);
}

Config config_of(const element& vector) {
  return parse_config(fmt::format(R"({{"optimizer": {{"type": "Adam", "params": {{"lr": {}}}}},
                      "scheduler": {{"type": {}, "params": {}}}}})",
                                  simdjson::minify(vector["optimizer_lr"].value_unsafe()),
                                  simdjson::minify(vector["type"].value_unsafe()),
                                  simdjson::minify(vector["params"].value_unsafe())),
                      "vector", ParseOptions{.batch_required = false});
}

void expect_the_vectors_of(const std::string& path) {
  SCOPED_TRACE(path);
  simdjson::dom::parser parser;
  const element vectors = parser.load(path);
  int types = 0;
  for (const element& vector : simdjson::dom::array(vectors)) {
    SCOPED_TRACE(std::string_view(vector["type"]));
    ++types;
    const Config config = config_of(vector);
    const LrSchedule schedule(config.schedule, config.optimizer.lr);
    std::int64_t step = 0;
    for (const element& lr : simdjson::dom::array(vector["lr"])) {
      ++step;
      EXPECT_TRUE(close(schedule.lr_at(step), double(lr))) << "lr of step " << step;
    }
    EXPECT_EQ(step, 60);
    element betas;
    if (vector["betas"].get(betas) != simdjson::SUCCESS) {
      EXPECT_EQ(schedule.betas_at(1), std::nullopt);
      continue;
    }
    step = 0;
    for (const element& pair : simdjson::dom::array(betas)) {
      ++step;
      const auto ours = schedule.betas_at(step);
      ASSERT_TRUE(ours.has_value());
      EXPECT_TRUE(close((*ours)[0], double(pair.at(0)))) << "beta 1 of step " << step;
      EXPECT_TRUE(close((*ours)[1], double(pair.at(1)))) << "beta 2 of step " << step;
    }
  }
  EXPECT_EQ(types, 5);
}

// tests/drills/schedule_grid.py made the first file with DeepSpeed 0.19.8's own classes.
TEST(Schedule, AgreesWithTheReferenceVectors) {
  expect_the_vectors_of(test::source_path("tests/data/schedules/usual.json"));
  if (const std::string more = test::source_path("../shared/oracles/schedules/schedules.json");
      std::filesystem::exists(more)) {
    expect_the_vectors_of(more);
  }
}

/// Returns the learning rates for a vector's parameters, or nothing if they are refused.
std::optional<LrSchedule> schedule_of(const element& vector) {
  try {
    const Config config = config_of(vector);
    return LrSchedule(config.schedule, config.optimizer.lr);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// tests/drills/schedule_grid.py made the file with DeepSpeed 0.19.8's own classes.
TEST(Schedule, CountsAtTheirLeastValuesAreDeepSpeeds) {
  simdjson::dom::parser parser;
  const element vectors = parser.load(test::source_path("tests/data/schedules/least_values.json"));
  int refused = 0;
  int equal = 0;
  for (const element& vector : simdjson::dom::array(vectors)) {
    SCOPED_TRACE(simdjson::minify(vector));
    const std::optional<LrSchedule> schedule = schedule_of(vector);
    simdjson::dom::array rates;
    if (vector["lr"].get(rates) != simdjson::SUCCESS) {  // the error that DeepSpeed raises
      EXPECT_FALSE(schedule.has_value());
      ++refused;
      continue;
    }
    ASSERT_TRUE(schedule.has_value());
    std::int64_t step = 0;
    for (const element& lr : rates) {
      ++step;
      EXPECT_TRUE(close(schedule->lr_at(step), double(lr))) << "lr of step " << step;
    }
    ++equal;
  }
  EXPECT_EQ(refused, 56);
  EXPECT_EQ(equal, 130);
}

TEST(Schedule, WarmupLogAndLinear) {
  // N = 1000, 0 -> 1e-3, as DeepSpeed gives them.
  const std::array<std::int64_t, 7> steps = {1, 2, 3, 10, 100, 1001, 1002};
  const std::array log = {0.0, 0.0, 1.00343e-4, 3.18081e-4, 6.65212e-4, 1e-3, 1e-3};
  const std::array linear = {0.0, 0.0, 1e-6, 8e-6, 9.8e-5, 9.99e-4, 1e-3};
  ScheduleConfig config{.type = ScheduleType::kWarmup};
  for (std::size_t k = 0; k < steps.size(); ++k) {
    config.warmup_type = WarmupShape::kLog;
    EXPECT_NEAR(LrSchedule(config, 1e-3).lr_at(steps[k]), log[k], 5e-10) << steps[k];
    config.warmup_type = WarmupShape::kLinear;
    EXPECT_NEAR(LrSchedule(config, 1e-3).lr_at(steps[k]), linear[k], 1e-15) << steps[k];
  }
}

TEST(Schedule, WarmupGoesToTheGivenMaximumOrTheOptimizersRate) {
  ScheduleConfig config{.type = ScheduleType::kWarmup, .warmup_num_steps = 1};
  EXPECT_EQ(LrSchedule(config, 0.25).lr_at(5), 0.25);
  config.warmup_max_lr = 0.5;
  EXPECT_EQ(LrSchedule(config, 0.25).lr_at(5), 0.5);
  EXPECT_EQ(LrSchedule(config, 0.25).lr_at(1), 0) << "one step of warm-up takes ln(1)/ln(2)";
}

TEST(Schedule, WithoutASchedulerTheRateIsConstant) {
  EXPECT_EQ(LrSchedule({}, 0.125).lr_at(1), 0.125);
  EXPECT_EQ(LrSchedule({}, 0.125).lr_at(1'000'000), 0.125);
}

TEST(Schedule, OneCycleWithoutDecayStaysAtTheEnd) {
  ScheduleConfig config{.type = ScheduleType::kOneCycle,
                        .cycle_min_lr = 0.1,
                        .cycle_max_lr = 0.2,
                        .cycle_first_step_size = 4,
                        .cycle_second_step_size = 2};
  const LrSchedule schedule(config, 1);
  EXPECT_TRUE(close(schedule.lr_at(5), 0.2)) << "the peak, after the first part";
  EXPECT_TRUE(close(schedule.lr_at(6), 0.15)) << "half way down the shorter second part";
  EXPECT_EQ(schedule.lr_at(50), 0.1);
  EXPECT_EQ(schedule.betas_at(50), (std::array{0.9, 0.99}));
  config.cycle_momentum = false;
  EXPECT_EQ(LrSchedule(config, 1).betas_at(3), std::nullopt);
}

TEST(Schedule, OneCycleInStairsHoldsTheRateWithinOne) {
  ScheduleConfig config{.type = ScheduleType::kOneCycle,
                        .cycle_min_lr = 0.0005,
                        .cycle_max_lr = 0.004,
                        .cycle_first_step_size = 12,
                        .cycle_second_step_size = 20,
                        .cycle_first_stair_count = 4,
                        .cycle_second_stair_count = 5};
  const LrSchedule schedule(config, 1);
  const auto expect = [&](std::int64_t first, std::int64_t last, double rate) {
    for (std::int64_t step = first; step <= last; ++step) {
      EXPECT_TRUE(close(schedule.lr_at(step), rate)) << step << ": " << schedule.lr_at(step);
      EXPECT_EQ(schedule.lr_at(step), schedule.lr_at(last)) << step;
    }
  };
  expect(1, 3, 0.0005);
  expect(4, 6, 0.001375);
  expect(7, 9, 0.00225);
  expect(10, 12, 0.003125);
  expect(13, 13, 0.004);
  expect(14, 17, 0.0033);
  expect(18, 21, 0.0026);
  expect(30, 33, 0.0005);
  EXPECT_EQ(schedule.betas_at(5), schedule.betas_at(6)) << "the momentum has the same stairs";
  config.cycle_second_stair_count.reset();
  EXPECT_TRUE(close(LrSchedule(config, 1).lr_at(18), 0.003125)) << "4 stairs, as up";
}

TEST(Schedule, RangeTestInStairs) {
  const ScheduleConfig config{.type = ScheduleType::kRangeTest,
                              .range_test_min_lr = 1,
                              .range_test_step_size = 3,
                              .range_test_staircase = true};
  const LrSchedule schedule(config, 1);
  EXPECT_EQ(schedule.lr_at(3), 1);
  EXPECT_EQ(schedule.lr_at(4), 2);
  EXPECT_EQ(schedule.lr_at(6), 2);
  EXPECT_EQ(schedule.lr_at(7), 3);
}

TEST(Schedule, ParametersThatMakeNoScheduleAreRefused) {
  EXPECT_THROW(LrSchedule({.type = ScheduleType::kWarmupDecay}, 1), Error);
  EXPECT_THROW(LrSchedule({.type = ScheduleType::kWarmup, .warmup_num_steps = 0}, 1), Error);
  EXPECT_THROW(LrSchedule({.type = ScheduleType::kOneCycle, .cycle_first_step_size = 0}, 1), Error);
  EXPECT_THROW(LrSchedule({.type = ScheduleType::kRangeTest, .range_test_step_size = 0}, 1), Error);
}

}  // namespace
}  // namespace tandem
