#include "engine/layout/step_plan.hpp"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "tests/support/toy/model.hpp"

namespace tandem {
namespace {

/// Returns the toy model's slot classes at a ZeRO stage; units up to `threshold` elements stay
/// replicated.
SlotClasses classes_of(const Model& model, std::int64_t stage = 3, std::int64_t threshold = 0) {
  ZeroConfig zero;
  zero.stage = stage;
  zero.param_persistence_threshold = threshold;
  return SlotClasses::of(model, Sharding::of(model, zero, 2, 0));
}

TEST(SlotClasses, TiedAndLargeUnitsHaveTheirOwnPool) {
  const SlotClasses classes = classes_of(toy::model());
  for (const SlotPools& pools : {classes.weights, classes.gradients}) {
    EXPECT_EQ(pools.pool_of, (std::vector<std::size_t>{1, 0, 0, 0, 0}));
    EXPECT_EQ(pools.pools(), 2U);
    EXPECT_EQ(pools.min_shared_slots, 1U);
  }
}

TEST(SlotClasses, FollowTheStage) {
  const std::vector<std::size_t> none(5, kNoPool);
  const std::vector<std::size_t> shared = {1, 0, 0, 0, 0};
  const std::vector<std::size_t> own = {1, 2, 3, 4, 5};
  for (const std::int64_t stage : {0, 1, 2}) {
    const SlotClasses classes = classes_of(toy::model(), stage);
    EXPECT_EQ(classes.weights.pool_of, none) << "stage " << stage;
    EXPECT_EQ(classes.gradients.pool_of, stage < 2 ? own : shared) << "stage " << stage;
  }
  // Only the scale's 27 elements are below the threshold.
  EXPECT_EQ(classes_of(toy::model(), 3, 100).weights.pool_of,
            (std::vector<std::size_t>{1, 0, 0, 0, kNoPool}));
}

TEST(Sharding, SmallUnitsStayWholeUntilTheModelsLimit) {
  const Model model = toy::model();
  ZeroConfig zero;
  zero.stage = 3;
  zero.param_persistence_threshold = 3000;
  zero.model_persistence_threshold = 4000;
  // 888, then three of 2352, then 27 elements.
  EXPECT_EQ(Sharding::of(model, zero, 2, 1).weights_replicated,
            (std::vector<bool>{true, true, false, false, true}));
}

TEST(StepPlan, VisitsForwardThenBackwardForEachMicroStep) {
  const Model model = toy::model();
  const StepPlan plan = StepPlan::training(model, classes_of(model), 2);
  const std::size_t segments = model.segments.size();
  ASSERT_EQ(plan.visits.size(), 4 * segments);
  for (std::size_t v = 0; v < plan.visits.size(); ++v) {
    const std::size_t in_sweep = v % (2 * segments);
    const bool forward = in_sweep < segments;
    EXPECT_EQ(plan.visits[v].phase, forward ? Phase::kForward : Phase::kBackward);
    EXPECT_EQ(plan.visits[v].segment, forward ? in_sweep : 2 * segments - 1 - in_sweep);
    EXPECT_EQ(plan.visits[v].micro_step, v / (2 * segments));
  }
}

TEST(StepPlan, TicketsAndGathersCountUpWithoutGaps) {
  const Model model = toy::model();
  const StepPlan plan = StepPlan::training(model, classes_of(model), 3);
  std::map<std::size_t, std::uint64_t> next_ticket;
  std::map<std::size_t, std::uint64_t> next_gradient;
  std::uint64_t next_gather = 0;
  for (const Visit& visit : plan.visits) {
    for (const UnitUse& use : visit.uses) {
      EXPECT_EQ(use.ticket, next_ticket[use.pool]++);
      EXPECT_EQ(use.order, next_gather++);
      if (use.first_gradient) {
        EXPECT_EQ(use.gradient_ticket, next_gradient[use.gradient_pool]++);
      }
    }
  }
  EXPECT_EQ(plan.gathers, (CommunicatorOrders{next_gather, 0}));
  for (std::size_t pool = 0; pool < plan.tickets.size(); ++pool) {
    EXPECT_EQ(plan.tickets[pool], next_ticket[pool]);
    EXPECT_EQ(plan.gradient_tickets[pool], next_gradient[pool]);
  }
}

TEST(StepPlan, NextUseIsTheNextVisitOfTheSameUnit) {
  const Model model = toy::model();
  const StepPlan plan = StepPlan::training(model, classes_of(model), 1);
  // Walk two passes in a row and compare with what is really next.
  struct Seen {
    std::uint64_t ticket;
    std::size_t unit;
    std::uint64_t next_use;
    std::size_t pool;
  };
  std::vector<Seen> uses;
  for (int pass = 0; pass < 2; ++pass) {
    for (const Visit& visit : plan.visits) {
      for (const UnitUse& use : visit.uses) {
        const std::uint64_t base = static_cast<std::uint64_t>(pass) * plan.tickets[use.pool];
        uses.push_back({base + use.ticket, use.unit, base + use.next_use, use.pool});
      }
    }
  }
  for (std::size_t i = 0; i < uses.size() / 2; ++i) {
    std::size_t j = i + 1;
    while (uses[j].unit != uses[i].unit) {
      ++j;
    }
    EXPECT_EQ(uses[i].next_use, uses[j].ticket) << "use " << i;
  }
}

TEST(StepPlan, ATiedGradientOpensAtTheHeadAndClosesAtTheEmbedding) {
  const Model model = toy::model();
  const StepPlan plan = StepPlan::training(model, classes_of(model), 1);
  int opened = 0;
  int closed = 0;
  for (const Visit& visit : plan.visits) {
    for (const UnitUse& use : visit.uses) {
      if (use.unit != 0) {
        EXPECT_EQ(use.first_gradient, visit.phase == Phase::kBackward);
        EXPECT_EQ(use.last_gradient, visit.phase == Phase::kBackward);
        continue;
      }
      opened += use.first_gradient ? 1 : 0;
      closed += use.last_gradient ? 1 : 0;
      if (use.first_gradient) {
        EXPECT_EQ(visit.segment, model.segments.size() - 1);
      }
      if (use.last_gradient) {
        EXPECT_EQ(visit.segment, 0U);
      }
    }
  }
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(closed, 1);
}

TEST(StepPlan, DeadlinesFollowTheForward) {
  const Model model = toy::model();
  const StepPlan plan = StepPlan::inference(model, classes_of(model));
  EXPECT_EQ(plan.first_visits(model.units.size()), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace tandem
