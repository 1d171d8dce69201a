// The learning rate of a step: Transformers' linear and cosine, the DeepSpeed example's constant.
#include "trainer/finetune/rate_schedule.hpp"

#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/support/io_support.hpp"
#include "tests/support/python.hpp"

namespace tandem {
namespace {

std::vector<double> rates(RateShape shape, double warmup, std::int64_t steps) {
  const auto warm = static_cast<std::int64_t>(std::ceil(warmup * static_cast<double>(steps)));
  const RateSchedule schedule = {shape, 2e-3, warm, steps};
  std::vector<double> all;
  for (std::int64_t step = 1; step <= steps; ++step) {
    all.push_back(schedule.at(step));
  }
  return all;
}

TEST(RateSchedule, LinearRisesFromNothingAndWouldEndBehindTheLastStep) {
  const std::vector<double> expected = {0, 1e-3, 2e-3, 1.5e-3, 1e-3, 0.5e-3};
  const std::vector<double> made = rates(RateShape::kLinear, 0.25, 6);  // 1.5 steps are 2
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_DOUBLE_EQ(made[i], expected[i]) << i;
  }
  EXPECT_EQ(rates(RateShape::kLinear, 0, 4), (std::vector{2e-3, 1.5e-3, 1e-3, 0.5e-3}));
  EXPECT_EQ((RateSchedule{RateShape::kLinear, 2e-3, 0, 4}.at(9)), 0);
  EXPECT_EQ((RateSchedule{RateShape::kLinear, 2e-3, 1, 1}.at(2)), 0);
}

TEST(RateSchedule, ConstantRisesFromTheFirstStepOnAndStays) {
  EXPECT_EQ(rates(RateShape::kConstant, 0.5, 4), (std::vector{1e-3, 2e-3, 2e-3, 2e-3}));
  EXPECT_EQ(rates(RateShape::kConstant, 0, 2), (std::vector{2e-3, 2e-3}));
}

TEST(RateSchedule, IsTransformersNumberForNumber) {
  const test::TempDir dir;
  TANDEM_NEEDS_PYTHON(dir.path(), "transformers");
  std::string made;
  for (const std::int64_t steps : {1, 7, 384}) {
    for (const double warmup : {0.0, 0.01, 0.3, 1.0}) {
      for (const RateShape shape : {RateShape::kLinear, RateShape::kCosine}) {
        made += fmt::format("{} {} {} {}\n", name_of(shape), steps, warmup,
                            fmt::join(rates(shape, warmup, steps), " "));
      }
    }
  }
  test::put(dir / "rates.txt", made);
  std::string output;
  EXPECT_TRUE(test::run_python(dir.path(), R"(
import math, sys, torch
from transformers import get_scheduler
for line in open(sys.argv[1] + '/rates.txt'):
    name, steps, warmup, *rates = line.split()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = get_scheduler(name, optimizer, math.ceil(int(steps) * float(warmup)), int(steps))
    for step, rate in enumerate(rates, 1):
        theirs = scheduler.get_last_lr()[0]
        assert abs(theirs - float(rate)) <= 1e-15 * 2e-3, (name, steps, warmup, step, theirs, rate)
        optimizer.step()
        scheduler.step()
)",
                               "'" + dir.path().string() + "'", &output))
      << output;
}

}  // namespace
}  // namespace tandem
