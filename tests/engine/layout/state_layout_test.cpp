// Layouts of master weights and moments, seen from the engine: split gives the bits of fp32, the
// rounded ones bits that no schedule, stage or number of ranks changes; and what cannot be is
// refused.
#include <string>

#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::arguments;
using toy::Setting;
using toy::train;
using toy::train_on_ranks;
using toy::TrainingRun;

TEST(StateLayouts, SplitGivesTheBitsOfFp32) {
  for (const double clip : {0.0, 0.01, toy::middle_norm({.type = "bf16"}, 8)}) {
    Setting setting{.overlap = Overlap::kOff, .type = "bf16", .clip = clip};
    const TrainingRun expected = train(setting, 8);
    setting.state_layout = StateLayout::kSplit;
    for (const Overlap overlap : {Overlap::kOff, Overlap::kOffload, Overlap::kFull}) {
      for (const int stage : {0, 1, 3}) {
        setting.overlap = overlap;
        setting.stage = stage;
        setting.forced_misses = clip == 0 ? 0.5 : 0;
        EXPECT_EQ(train(setting, 8), expected)
            << "clip " << clip << " " << name_of(overlap) << " stage " << stage;
      }
    }
  }
}

TEST(StateLayouts, RoundedOnesGiveTheSameBitsUnderEverySchedule) {
  for (const StateLayout layout : {StateLayout::kBf16, StateLayout::kInt8}) {
    for (const std::string type : {"fp32", "bf16"}) {
      Setting setting{.stage = 2, .overlap = Overlap::kOff, .accumulation = 2, .type = type};
      setting.state_layout = layout;
      setting.clip = 0;
      const TrainingRun unclipped = train(setting, 8);
      setting.clip = toy::middle_norm(setting, 8);
      const TrainingRun expected = train(setting, 8);
      EXPECT_FALSE(unclipped == expected) << "the limit acts";
      for (const int stage : {0, 3}) {
        for (const int threads : {1, 2}) {
          setting.overlap = Overlap::kFull;
          setting.stage = stage;
          setting.optimizer_threads = threads;
          setting.forced_misses = 0.3;
          EXPECT_EQ(train(setting, 8), expected)
              << name_of(layout) << " " << type << " stage " << stage << " threads " << threads;
        }
      }
      if (type == "fp32") {  // where two ranks compute what one does
        setting.accumulation = 1;
        EXPECT_EQ(train_on_ranks(setting, 2, 8), expected) << name_of(layout) << " 2 ranks";
      }
    }
  }
}

/// How far the loss of one batch falls in 60 steps on it.
double learned(StateLayout layout) {
  Setting setting{.type = "bf16", .clip = 1.0};
  setting.state_layout = layout;
  Engine engine(arguments(setting));
  const Batch batch = toy::batch(0);
  const double first = engine.train_step(std::span(&batch, 1)).loss;
  double last = first;
  for (int step = 1; step < 60; ++step) {
    last = engine.train_step(std::span(&batch, 1)).loss;
  }
  return first - last;
}

TEST(StateLayouts, RoundedOnesLearnAsFp32Does) {
  const double exact = learned(StateLayout::kFp32);
  EXPECT_GT(exact, 1);
  for (const StateLayout layout : {StateLayout::kBf16, StateLayout::kInt8}) {
    EXPECT_NEAR(learned(layout) / exact, 1, 0.05) << name_of(layout);
  }
}

TEST(StateLayouts, WhatCannotBeIsRefused) {
  const auto refusal_of = [](InitializeArgs args) {
    return error_text([&] { const Engine engine(std::move(args)); });
  };
  Setting setting{.type = "fp32"};
  setting.state_layout = StateLayout::kSplit;
  EXPECT_NE(refusal_of(arguments(setting)).find("nothing to split"), std::string::npos);
  setting.type = "fp16";
  EXPECT_NE(refusal_of(arguments(setting)).find("fp16"), std::string::npos);
  setting.type = "bf16";
  setting.state_layout = StateLayout::kInt8;
  InitializeArgs args = arguments(setting);
  args.model.units[4].parameters[0].frozen = true;  // 24 elements, before unused.weight
  EXPECT_NE(refusal_of(std::move(args)).find("blocks are 128 elements"), std::string::npos);
}

}  // namespace
}  // namespace tandem
