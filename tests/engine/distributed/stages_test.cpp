// ZeRO stages are a choice of what lies where, ranks one of who computes what: losses, norms and
// weights are the same bits at every stage, under every schedule, and however many ranks share a
// step's micro-batches.
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::Setting;
using toy::train;
using toy::train_on_ranks;
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
        for (const Overlap overlap :
             {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}) {
          for (const std::int64_t persistent_elements : {0, 100}) {
            setting.stage = stage;
            setting.overlap = overlap;
            setting.persistent_elements = persistent_elements;
            EXPECT_EQ(train(setting), expected)
                << type << " stage " << stage << " " << name_of(overlap) << " accumulation "
                << accumulation << " persistent " << persistent_elements;
          }
        }
      }
    }
  }
}

struct Ranks {
  int world_size;
  int accumulation;
};
void PrintTo(const Ranks& one, std::ostream* out) {
  *out << one.world_size << " ranks, " << one.accumulation << " micro-batches";
}

class StagesOnRanks : public ::testing::TestWithParam<std::tuple<std::string, Ranks>> {};

TEST_P(StagesOnRanks, GiveTheSameBits) {
  const auto& [type, ranks] = GetParam();
  Setting setting{.overlap = Overlap::kOff, .accumulation = ranks.accumulation, .type = type};
  const TrainingRun expected = train_on_ranks(setting, ranks.world_size, 5);
  for (const int stage : {0, 1, 2, 3}) {
    for (const Overlap overlap :
         {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}) {
      setting.stage = stage;
      setting.overlap = overlap;
      setting.persistent_elements = stage == 3 && overlap == Overlap::kComm ? 100 : 0;
      EXPECT_EQ(train_on_ranks(setting, ranks.world_size, 5), expected)
          << "stage " << stage << " " << name_of(overlap);
    }
  }
  if (type == "fp32") {
    // One rank with all of the step's micro-batches.
    setting.accumulation *= ranks.world_size;
    EXPECT_EQ(train(setting, 5), expected) << "world 1";
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, StagesOnRanks,
                         ::testing::Combine(::testing::Values("fp32", "bf16", "fp16"),
                                            ::testing::Values(Ranks{2, 1}, Ranks{2, 2}, Ranks{3, 1},
                                                              Ranks{4, 1})),
                         [](const auto& info) {
                           const Ranks& ranks = std::get<1>(info.param);
                           return fmt::format("{}_{}ranks_{}steps", std::get<0>(info.param),
                                              ranks.world_size, ranks.accumulation);
                         });

}  // namespace
}  // namespace tandem
