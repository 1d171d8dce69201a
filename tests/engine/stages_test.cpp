// ZeRO stages are a choice of what lies where: losses, norms and weights are the same bits at every one of them.
#include <string>

#include <gtest/gtest.h>

#include "tests/engine/toy_training.hpp"

namespace tandem {
namespace {

using toy::Setting;
using toy::train;
using toy::TrainingRun;

/// 16 bits are near fp32: scaled, accumulated and unscaled rightly.
void expect_near(const TrainingRun& run, const TrainingRun& fp32) {
  for (std::size_t step = 0; step < fp32.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], fp32.losses[step], 0.02);
    EXPECT_NEAR(run.norms[step] / fp32.norms[step], 1, 0.05);
  }
}

TEST(Stages, GiveTheSameBitsOnOneRank) {
  for (const std::string type : {"fp32", "bf16", "fp16"}) {
    for (const int accumulation : {1, 3}) {
      Setting setting{.overlap = Overlap::kOff, .accumulation = accumulation, .type = type};
      const TrainingRun expected = train(setting);
      expect_near(expected, train({.accumulation = accumulation}));
      for (const int stage : {0, 1, 2, 3}) {
        for (const Overlap overlap : {Overlap::kOff, Overlap::kComm, Overlap::kOffload}) {
          for (const std::int64_t persistent_elements : {0, 100}) {
            setting.stage = stage;
            setting.overlap = overlap;
            setting.persistent_elements = persistent_elements;
            EXPECT_TRUE(train(setting) == expected)
                << type << " stage " << stage << " " << name_of(overlap) << " accumulation "
                << accumulation << " persistent " << persistent_elements;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
