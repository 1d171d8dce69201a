// Updates ahead of the verdict: whatever the verdict, and whenever it comes, the bits are those of
// one update in place, or the old ones.
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/actors/optimizer/optimizer_world.hpp"

namespace tandem {
namespace {

using test::OptimizerWorld;
using test::settle;
using test::State;

constexpr std::size_t kElements = 512 * 20 + 77;
constexpr std::size_t kChunk = 512;

/// How far the speculative pass is when the verdict comes.
enum class Progress : std::uint8_t { kNotBegun, kUnderWay, kDone };

struct Case {
  bool weight_is_master;
  Progress progress;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << (one.weight_is_master ? "fp32" : "16 bits") << ", progress "
       << static_cast<int>(one.progress);
}

class SpeculativeUpdate : public ::testing::TestWithParam<Case> {
 protected:
  /// Units 0 and 1 have elements that no update touches; the others keep the pool from unit 0 and 1
  /// in kNotBegun.
  OptimizerWorld world{{kElements, kElements, 512 * 8, 512 * 8},
                       kChunk,
                       4,
                       {{{0, 700, 1}, {900, kElements, 0}}, {{0, kElements, 0}}},
                       GetParam().weight_is_master};
  std::vector<UpdateStep> guess = {UpdateStep::make({.lr = 1e-2}, 1, 0.5),
                                   UpdateStep::make({.lr = 3e-2, .weight_decay = 0.1}, 1, 0.5)};
  std::vector<UpdateStep> clipped = {UpdateStep::make({.lr = 1e-2}, 1, 0.25),
                                     UpdateStep::make({.lr = 3e-2, .weight_decay = 0.1}, 1, 0.25)};

  /// Units that the speculative pass has touched when the verdict comes: both slices under way are
  /// of the first one.
  static std::size_t begun() { return static_cast<std::size_t>(GetParam().progress); }

  void ask_speculatively(std::uint64_t version = 1) {
    if (GetParam().progress != Progress::kDone) {
      world.block_pool();
    }
    if (GetParam().progress == Progress::kNotBegun) {
      for (const std::uint32_t other : {2U, 3U}) {
        world.update_by(guess.data(), other, 0, version);
      }
      world.loop.run(&settle);
    }
    for (const std::uint32_t unit : {0U, 1U}) {
      world.send({.unit = unit,
                  .steps = guess.data(),
                  .deadline = 5,
                  .new_version = version,
                  .speculative = true});
    }
    while (GetParam().progress == Progress::kDone && world.optimizer->waiting_for_verdict() < 2) {
      world.loop.run(&settle);
    }
    world.loop.run(&settle);
  }
  void verdict(const std::vector<UpdateStep>& steps, bool redo = false, std::uint64_t version = 1) {
    for (const std::uint32_t unit : {0U, 1U}) {
      world.send({.unit = unit,
                  .steps = steps.data(),
                  .deadline = 5,
                  .new_version = version,
                  .redo = redo});
    }
    world.finish();
  }
  static void update(State& state, std::size_t unit, const std::vector<UpdateStep>& steps) {
    if (unit == 0) {
      apply_update(steps[1], state.buffers(), 0, 700);
      apply_update(steps[0], state.buffers(), 900, kElements);
    } else {
      apply_update(steps[0], state.buffers(), 0, kElements);
    }
  }
  /// Where the optimizer has the state now, it is what `made` makes of the first one.
  void expect_state(const std::function<void(State&, std::size_t)>& made) {
    for (const std::size_t unit : {0UL, 1UL}) {
      State expected(kElements, static_cast<unsigned>(unit));
      expected.weight_is_master = GetParam().weight_is_master;
      made(expected, unit);
      const UpdateBuffers now = on_host(world.optimizer->state_of(unit).buffers);
      const auto array = [](const void* data) {
        const auto* values = static_cast<const float*>(data);
        return std::vector<float>(values, values + kElements);
      };
      const auto touched = [unit](std::vector<float> state) {
        // Elements that no update touches have no moments; in a shadow theirs may be anything.
        if (unit == 0) {
          std::fill(state.begin() + 700, state.begin() + 900, 0.0F);
        }
        return state;
      };
      EXPECT_EQ(array(now.master), expected.master) << unit;
      EXPECT_EQ(touched(array(now.state[0])), expected.exp_avg) << unit;
      EXPECT_EQ(touched(array(now.state[1])), expected.exp_avg_sq) << unit;
      EXPECT_EQ(world.states[unit].weight, expected.weight) << unit;
      EXPECT_TRUE(GetParam().weight_is_master == (now.weight == nullptr));
    }
  }
  [[nodiscard]] long said(const std::string& entry) const {
    return std::ranges::count(world.journal, entry);
  }
};

TEST_P(SpeculativeUpdate, CountsWhenTheVerdictHasItsConstants) {
  ask_speculatively();
  const std::vector<UpdateStep> same = guess;
  verdict(same);
  expect_state([&](State& state, std::size_t unit) { update(state, unit, guess); });
  EXPECT_EQ(world.optimizer->counters().speculative, begun());
  EXPECT_EQ(world.optimizer->counters().redone, 0U);
  EXPECT_EQ(said("start 0"), 1);
  EXPECT_EQ(world.shards[0]->ready, 1U);
}

TEST_P(SpeculativeUpdate, IsMadeAgainWithOtherConstants) {
  ask_speculatively();
  verdict(clipped);
  expect_state([&](State& state, std::size_t unit) { update(state, unit, clipped); });
  EXPECT_EQ(world.optimizer->counters().speculative, 0U);
  EXPECT_EQ(world.optimizer->counters().redone, begun());
  EXPECT_EQ(said("start 0"), 1);
  EXPECT_EQ(said("ready 0"), 1);
}

TEST_P(SpeculativeUpdate, IsMadeAgainWhenAskedTo) {
  ask_speculatively();
  verdict(guess, true);
  expect_state([&](State& state, std::size_t unit) { update(state, unit, guess); });
  EXPECT_EQ(world.optimizer->counters().speculative, 0U);
}

TEST_P(SpeculativeUpdate, LeavesTheOldBitsWhenUndone) {
  ask_speculatively();
  world.loop.run(
      [](OptimizerWorld* w) -> Task<> {
        auto undone = w->optimizer->address().ask(RollBackUpdates{});
        w->roadblock.open();
        co_await std::move(undone);
      },
      &world);
  world.finish();
  expect_state([](State&, std::size_t) {});
  EXPECT_EQ(world.optimizer->counters().rolled_back, begun());
  EXPECT_EQ(said("undone 0"), said("start 0"));
  EXPECT_EQ(said("start 0"), begun() > 0 ? 1 : 0);
  EXPECT_EQ(said("ready 0"), 0);
  verdict(clipped);  // an ordinary update later on
  expect_state([&](State& state, std::size_t unit) { update(state, unit, clipped); });
}

TEST_P(SpeculativeUpdate, AlternatesBetweenTheShadows) {
  const std::vector<UpdateStep> second = {
      UpdateStep::make({.lr = 1e-2}, 2, 0.5),
      UpdateStep::make({.lr = 3e-2, .weight_decay = 0.1}, 2, 0.5)};
  ask_speculatively();
  const std::vector<UpdateStep> first = guess;
  verdict(first);
  guess = second;
  for (const std::uint32_t unit : {0U, 1U}) {
    world.send({.unit = unit,
                .steps = guess.data(),
                .deadline = 5,
                .new_version = 2,
                .speculative = true});
  }
  while (world.optimizer->waiting_for_verdict() < 2) {
    world.loop.run(&settle);
  }
  verdict(second, false, 2);
  expect_state([&](State& state, std::size_t unit) {
    update(state, unit, first);
    update(state, unit, second);
  });
}

TEST_P(SpeculativeUpdate, IsNotWhatADrainWaitsFor) {
  ask_speculatively();
  if (GetParam().progress == Progress::kDone) {
    EXPECT_EQ(world.drain().updates, 0U);
  }
  world.roadblock.open();
  EXPECT_EQ(world.drain().queued, 0U);
  EXPECT_EQ(said("ready 0"), 0);
  verdict(guess);
  EXPECT_EQ(said("ready 0"), 1);
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const char* const progress[] = {"not_begun", "under_way", "done"};
  return std::string(info.param.weight_is_master ? "fp32_" : "bf16_") +
         progress[static_cast<std::size_t>(info.param.progress)];
}

INSTANTIATE_TEST_SUITE_P(
    Verdicts, SpeculativeUpdate,
    ::testing::Values(Case{false, Progress::kNotBegun}, Case{false, Progress::kUnderWay},
                      Case{false, Progress::kDone}, Case{true, Progress::kNotBegun},
                      Case{true, Progress::kUnderWay}, Case{true, Progress::kDone}),
    name_of_case);

}  // namespace
}  // namespace tandem
