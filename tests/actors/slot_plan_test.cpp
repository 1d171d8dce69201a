#include "actors/slot_plan.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "actors/unit_layout.hpp"

namespace tandem {
namespace {

struct Visit {
  std::uint32_t unit;
  std::uint64_t version;
};

/// Forward and backward over `units`, `steps` times; a step raises every version.
std::vector<Visit> training_plan(std::uint32_t units, int steps) {
  std::vector<Visit> plan;
  for (int step = 0; step < steps; ++step) {
    for (std::uint32_t u = 0; u < units; ++u) {
      plan.push_back({u, static_cast<std::uint64_t>(step)});
    }
    for (std::uint32_t u = units; u-- > 0;) {
      plan.push_back({u, static_cast<std::uint64_t>(step)});
    }
  }
  return plan;
}

std::uint64_t next_use(const std::vector<Visit>& plan, std::size_t ticket) {
  for (std::size_t t = ticket + 1; t < plan.size(); ++t) {
    if (plan[t].unit == plan[ticket].unit) {
      return plan[t].version == plan[ticket].version ? t : kNoNextUse;
    }
  }
  return kNoNextUse;
}

/// Drives a plan with a shuffled order of requests and releases; returns the decisions in ticket
/// order.
std::vector<SlotDecision> drive(const std::vector<Visit>& plan, SlotPlan::Options options,
                                unsigned seed) {
  std::mt19937 random(seed);
  SlotPlan slots(options);
  std::vector<SlotDecision> decisions;
  std::vector<std::uint64_t> in_flight;
  std::vector<std::size_t> owner(options.slots, plan.size());  // which visit holds a slot
  std::vector<bool> asked(plan.size());
  while (decisions.size() < plan.size() || !in_flight.empty()) {
    if (random() % 2 == 0 || in_flight.empty()) {
      const std::size_t ahead = random() % options.max_ahead;
      const std::size_t ticket = decisions.size() + ahead;
      if (ticket < plan.size() && !asked[ticket]) {
        slots.request(ticket, plan[ticket].unit, plan[ticket].version);
        asked[ticket] = true;
      }
    } else {
      const std::size_t pick = random() % in_flight.size();
      const std::uint64_t ticket = in_flight[pick];
      in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(pick));
      slots.release(ticket, next_use(plan, ticket));
    }
    while (const auto decision = slots.decide()) {
      EXPECT_EQ(decision->ticket, decisions.size()) << "strictly in ticket order";
      const std::size_t last = owner[decision->slot];
      if (!decision->resident && last < plan.size()) {
        EXPECT_EQ(std::ranges::count(in_flight, last), 0) << "a slot in use was given away";
      }
      if (decision->resident) {
        EXPECT_EQ(plan[last].unit, plan[decision->ticket].unit);
        EXPECT_EQ(plan[last].version, plan[decision->ticket].version);
      }
      owner[decision->slot] = decision->ticket;
      decisions.push_back(*decision);
      in_flight.push_back(decision->ticket);
      EXPECT_LE(in_flight.size(), options.max_in_flight);
    }
  }
  return decisions;
}

TEST(SlotPlan, DecisionsDoNotDependOnTiming) {
  for (const std::uint32_t units : {1U, 3U, 7U}) {
    const auto plan = training_plan(units, 4);
    for (const SlotPlan::Options options :
         {SlotPlan::Options{1, 1, 4}, SlotPlan::Options{3, 2, 8}, SlotPlan::Options{4, 4, 8},
          SlotPlan::Options{7, 3, 64}}) {
      const auto expected = drive(plan, options, 0);
      for (unsigned seed = 1; seed < 30; ++seed) {
        const auto got = drive(plan, options, seed);
        for (std::size_t t = 0; t < plan.size(); ++t) {
          ASSERT_EQ(got[t].slot, expected[t].slot) << "ticket " << t;
          ASSERT_EQ(got[t].resident, expected[t].resident) << "ticket " << t;
        }
      }
    }
  }
}

TEST(SlotPlan, EnoughSlotsAreFilledOncePerVersion) {
  const auto plan = training_plan(5, 3);
  const auto decisions = drive(plan, {.slots = 5, .max_in_flight = 2, .max_ahead = 4}, 1);
  for (std::size_t t = 0; t < plan.size(); ++t) {
    EXPECT_EQ(decisions[t].resident, t % 10 >= 5) << t;  // forward gathers, backward finds it there
  }
}

TEST(SlotPlan, EvictsTheFarthestNextUse) {
  // Forward 0 1 2 3, backward 3 2 1 0 with three slots, one in flight: unit 0's next use is the
  // farthest, so it goes.
  const auto plan = training_plan(4, 1);
  const auto decisions = drive(plan, {.slots = 3, .max_in_flight = 1, .max_ahead = 4}, 2);
  const std::vector<bool> resident = {false, false, false, false, true, true, true, false};
  for (std::size_t t = 0; t < plan.size(); ++t) {
    EXPECT_EQ(decisions[t].resident, resident[t]) << t;
  }
  EXPECT_EQ(decisions[3].slot, decisions[0].slot);
}

TEST(SlotPlan, WaitsForReleasesAndForMissingTickets) {
  SlotPlan slots({.slots = 2, .max_in_flight = 2, .max_ahead = 8});
  slots.request(1, 1, 0);
  EXPECT_FALSE(slots.decide().has_value());  // ticket 0 has not asked: never by arrival
  slots.request(0, 0, 0);
  EXPECT_EQ(slots.decide()->ticket, 0U);
  EXPECT_EQ(slots.decide()->ticket, 1U);
  slots.request(2, 2, 0);
  EXPECT_FALSE(slots.decide().has_value());
  slots.release(1, kNoNextUse);
  EXPECT_FALSE(
      slots.decide().has_value());  // ticket 0 still holds its slot, and its release is what counts
  slots.release(0, kNoNextUse);
  EXPECT_EQ(slots.decide()->slot, 0U);
}

TEST(SlotPlan, AnOlderVersionIsVoid) {
  SlotPlan slots({.slots = 2, .max_in_flight = 1, .max_ahead = 8});
  const auto visit = [&slots](std::uint64_t ticket, std::uint32_t unit, std::uint64_t version,
                              std::uint64_t next) {
    slots.request(ticket, unit, version);
    const SlotDecision decision = *slots.decide();
    slots.release(ticket, next);
    return decision;
  };
  visit(0, 7, 1, 2);
  visit(1, 8, 1, 3);
  EXPECT_FALSE(visit(2, 7, 2, 4).resident);
  EXPECT_TRUE(visit(3, 8, 1, 9).resident);  // the void copy was evicted, not this one
  EXPECT_TRUE(visit(4, 7, 2, 8).resident);
}

TEST(SlotPlanDeathTest, RefusesBrokenPlans) {
  EXPECT_DEATH(SlotPlan({.slots = 1, .max_in_flight = 2}), "slot of its own");
  EXPECT_DEATH(
      {
        SlotPlan slots({.slots = 1, .max_in_flight = 1, .max_ahead = 4});
        slots.request(4, 0, 0);
      },
      "too far ahead");
  EXPECT_DEATH(
      {
        SlotPlan slots({.slots = 1, .max_in_flight = 1, .max_ahead = 4});
        slots.release(0, kNoNextUse);
      },
      "only a slot in use");
}

TEST(UnitLayout, PadsToEqualAlignedShards) {
  const UnitLayout one = UnitLayout::make(1000, 1);
  EXPECT_EQ(one.padded_elements, 1024U);
  EXPECT_EQ(one.shard_elements, 1024U);
  const UnitLayout eight = UnitLayout::make(4097, 8);
  EXPECT_EQ(eight.padded_elements, 8192U);
  EXPECT_EQ(eight.shard_elements, 1024U);
  EXPECT_EQ(eight.shard_begin(7), 7168U);
  EXPECT_EQ(UnitLayout::make(4096, 8).padded_elements, 4096U);
  EXPECT_EQ(UnitLayout::make(0, 8).padded_elements, 0U);
}

}  // namespace
}  // namespace tandem
