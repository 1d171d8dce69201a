#include "actors/optimizer/cpu_optimizer.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "tests/actors/optimizer/optimizer_world.hpp"

namespace tandem {
namespace {

using test::OptimizerWorld;
using test::settle;
using test::State;

/// Updates nothing, and counts the slices that are under way at the same time.
class CountingRunner final : public UpdateRunner {
 public:
  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return 1; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return 3; }
  Task<> run(UpdateSlice) override {
    most_ = std::max(most_, ++now_);
    for (int turn = 0; turn < 10; ++turn) {
      co_await yield();
    }
    --now_;
  }
  [[nodiscard]] int most() const noexcept { return most_; }

 private:
  int now_ = 0;
  int most_ = 0;
};

TEST(CpuOptimizer, FillsTheRunnersPipelineWithOneUnit) {
  for (const auto& [chunks, slices] : {std::pair(8, 3), {2, 2}, {1, 1}}) {
    CountingRunner runner;
    OptimizerWorld world({static_cast<std::size_t>(chunks) * 512}, 512, 1, {}, false, &runner);
    world.update(0, 0);
    world.drain();
    EXPECT_EQ(runner.most(), slices) << chunks << " slices";
  }
}

TEST(CpuOptimizer, GivesTheBitsOfOnePass) {
  const std::vector<std::size_t> sizes = {512, 100 * 512, 1, 33 * 512, 0};
  for (const std::size_t chunk : {512UL, 5 * 512UL, 1000 * 512UL}) {
    OptimizerWorld world(sizes, chunk, 3);
    world.block_pool();
    for (std::uint32_t u = 0; u < sizes.size(); ++u) {
      world.update(u, u, 7);
    }
    const OptimizerCounters counters = world.finish();
    EXPECT_EQ(counters.updates, sizes.size());
    EXPECT_EQ(counters.queued, 0U);
    EXPECT_EQ(counters.queued_max, sizes.size());
    EXPECT_GT(counters.busy_s, 0.0);
    for (std::size_t u = 0; u < sizes.size(); ++u) {
      State expected(sizes[u], static_cast<unsigned>(u));
      apply_update(world.step, expected.buffers(), 0, sizes[u]);
      EXPECT_EQ(expected.master, world.states[u].master);
      EXPECT_EQ(expected.exp_avg, world.states[u].exp_avg);
      EXPECT_EQ(expected.exp_avg_sq, world.states[u].exp_avg_sq);
      EXPECT_EQ(expected.weight, world.states[u].weight);
      EXPECT_EQ(world.shards[u]->started, 7U);
      EXPECT_EQ(world.shards[u]->ready, 7U);
    }
  }
}

TEST(CpuOptimizer, UpdatesByTheRuleOfTheMessage) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    OptimizerWorld world({512 * 9 + 3}, 512, 2);
    world.step = UpdateStep::make({.kind = kind, .lr = 1e-2, .momentum = 0.9}, 2, 0.5);
    world.update(0, 0);
    world.finish();
    State expected(512 * 9 + 3, 0);
    apply_update(world.step, expected.buffers(), 0, 512 * 9 + 3);
    EXPECT_EQ(expected.master, world.states[0].master);
    EXPECT_EQ(expected.exp_avg, world.states[0].exp_avg);
    EXPECT_EQ(expected.weight, world.states[0].weight);
  }
}

TEST(CpuOptimizer, UpdatesEachRangeByItsGroupAndLeavesTheRestAlone) {
  OptimizerWorld world({5000, 700}, 512, 2, {{{0, 700, 1}, {900, 3001, 0}, {3001, 3002, 1}}, {}});
  const std::vector<UpdateStep> steps = {UpdateStep::make({.lr = 1e-2}, 1, 0.5),
                                         UpdateStep::make({.lr = 3e-2, .weight_decay = 0.1}, 1, 1)};
  world.update_by(steps.data(), 0, 0);
  world.update_by(steps.data(), 1, 1);
  EXPECT_EQ(world.finish().elements, 700U + 2101 + 1);
  State expected(5000, 0);
  apply_update(steps[1], expected.buffers(), 0, 700);
  apply_update(steps[0], expected.buffers(), 900, 3001);
  apply_update(steps[1], expected.buffers(), 3001, 3002);
  EXPECT_EQ(expected.master, world.states[0].master);
  EXPECT_EQ(expected.exp_avg_sq, world.states[0].exp_avg_sq);
  EXPECT_EQ(expected.weight, world.states[0].weight);
  EXPECT_EQ(State(700, 1).master, world.states[1].master);
  EXPECT_EQ(world.shards[1]->ready, 1U) << "a frozen unit gets its version, too";
}

/// Both halves of LAMB's update of unit 0, by messages; the trust ratio is left at 1. `hold`: a
/// checkpoint holds the unit meanwhile, and lets go when the direction has been asked for.
void update_jointly(OptimizerWorld& world, const UpdateConfig& config, Direction& direction,
                    bool hold) {
  const DirectionStep first = direction_step(config, 0.5);
  world.step = UpdateStep::make(config, 3, 1);
  const auto run = [](OptimizerWorld* w, const DirectionStep* steps, Direction* into,
                      bool holds) -> Task<> {
    auto optimizer = w->optimizer->address();
    if (holds) {
      EXPECT_EQ(co_await optimizer.ask(FreezeUnits{}), 1U);
      w->scope.spawn(
          "saves",
          [](OptimizerWorld* of, const float* u, float before) -> Task<> {
            EXPECT_EQ(co_await of->optimizer->address().ask(NextWanted{}), 0U);
            EXPECT_EQ(*u, before) << "what a save reads stays as it is";
            co_await of->optimizer->address().send(UnfreezeUnit{0});
          },
          w, into->values, into->values[0]);
    }
    co_await optimizer.ask(DirectUnit{.unit = 0, .steps = steps, .direction = into});
    EXPECT_EQ(w->shards[0]->started, 0U) << "no weight is written yet";
    EXPECT_EQ(w->optimizer->counters().updates, 0U);
  };
  world.loop.run(run, &world, &first, &direction, hold);
  world.update(0, 0);
  EXPECT_EQ(world.finish().updates, 1U);
}

TEST(CpuOptimizer, AJointUpdateHasTwoHalvesAndWaitsForASave) {
  constexpr std::size_t kElements = 512 * 9 + 3;
  const UpdateConfig config{.kind = OptimizerKind::kLamb, .lr = 1e-2, .weight_decay = 0.1};
  State expected(kElements, 0);
  const UpdatedUnit unit{
      .buffers = expected.buffers(), .shadow = {}, .ranges = {{0, kElements, 0}}};
  Direction whole = Direction::of(unit.ranges, expected.gradient.data(), 512 * 100);
  const DirectionStep first = direction_step(config, 0.5);
  write_direction(unit, &first, whole, 0, kElements);
  apply_update(UpdateStep::make(config, 3, 1), expected.buffers(), 0, kElements);
  for (const bool hold : {false, true}) {
    OptimizerWorld world({kElements}, 512, 2);
    Direction direction = Direction::of(unit.ranges, world.states[0].gradient.data(), 512);
    update_jointly(world, config, direction, hold);
    EXPECT_EQ(world.states[0].master, expected.master);
    EXPECT_EQ(world.states[0].exp_avg, expected.exp_avg);
    EXPECT_EQ(world.states[0].exp_avg_sq, expected.exp_avg_sq);
    EXPECT_EQ(world.states[0].weight, expected.weight);
    ExactSum sum;
    for (const DirectionPiece& piece : direction.pieces) {
      sum.merge(piece.directions);
    }
    EXPECT_EQ(sum, whole.pieces.front().directions);
    EXPECT_EQ(world.shards[0]->ready, 1U);
  }
}

TEST(CpuOptimizer, TheEarliestDeadlineGoesFirst) {
  // Units 0 and 1 are the two slices under way before the others come; these then go by deadline.
  OptimizerWorld world({512, 512, 512 * 64, 512 * 8, 512 * 8, 512 * 8}, 512, 8);
  world.block_pool();
  world.update(0, 100);
  world.update(1, 100);
  world.loop.run(&settle);
  world.update(2, 30);
  world.update(3, 20);
  world.update(5, 40);
  world.update(4, 10);
  world.finish();
  std::erase_if(world.journal, [](const std::string& entry) { return entry.starts_with("ready"); });
  EXPECT_EQ(world.journal, (std::vector<std::string>{"start 0", "start 1", "start 4", "start 3",
                                                     "start 2", "start 5"}));
}

TEST(CpuOptimizer, AnUrgentLatecomerOvertakesLargeUnits) {
  OptimizerWorld world({512 * 500, 512 * 500, 512}, 512, 4);
  world.block_pool();
  world.update(0, 50);
  world.update(1, 50);
  world.loop.run(&settle);  // at most one slice of 125 of each is under way
  world.update(2, 1);
  world.finish();
  const auto position = [&world](const char* entry) {
    return std::ranges::find(world.journal, entry) - world.journal.begin();
  };
  EXPECT_LT(position("start 2"), position("ready 0"));
  EXPECT_LT(position("start 2"), position("ready 1"));
  EXPECT_EQ(world.journal.size(), 6U);
}

TEST(CpuOptimizer, DrainOfAnIdleOptimizerRepliesAtOnce) {
  OptimizerWorld world({512}, 512, 1);
  EXPECT_EQ(world.drain().updates, 0U);
  world.update(0, 0, 1);
  EXPECT_EQ(world.drain().updates, 1U);
  world.update(0, 0, 2);
  EXPECT_EQ(world.drain().updates, 2U);
  world.loop.run(&settle);
  EXPECT_EQ(world.shards[0]->ready, 2U);
}

}  // namespace
}  // namespace tandem
