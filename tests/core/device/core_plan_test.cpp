// The core plan over described machines: each rank's cores, and what runs on which.
#include "engine/device/core_plan.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// `nodes` NUMA nodes of `cores` cores of `threads` hardware threads; as Linux numbers them: first
/// threads first.
CpuTopology machine_of(int nodes, int cores, int threads) {
  CpuTopology topology;
  const int all = nodes * cores;
  for (int core = 0; core < all; ++core) {
    machine::Core entry{.numa_node = core / cores, .cpus = {}};
    for (int thread = 0; thread < threads; ++thread) {
      entry.cpus.push_back(thread * all + core);
    }
    topology.cores.push_back(std::move(entry));
  }
  topology.cpu_limit = all * threads;
  return topology;
}

/// No CPU twice in the plans of all ranks, and none forgotten.
void expect_divided(const std::vector<CorePlan>& plans, std::size_t cpus) {
  std::set<int> seen;
  for (const CorePlan& plan : plans) {
    for (const int cpu : plan.rank) {
      EXPECT_TRUE(seen.insert(cpu).second) << "CPU " << cpu << " belongs to two ranks";
    }
    for (const auto* part : {&plan.compute, &plan.optimizer, &plan.service}) {
      EXPECT_TRUE(std::ranges::all_of(*part, [&](int cpu) {
        return std::ranges::find(plan.rank, cpu) != plan.rank.end();
      })) << "a rank keeps to its own CPUs";
    }
  }
  EXPECT_EQ(seen.size(), cpus);
}

TEST(CorePlan, OneSocketWithoutSmt) {
  const CorePlan plan = CorePlan::of(machine_of(1, 8, 1), {});
  EXPECT_EQ(plan.compute_threads, 8);
  EXPECT_EQ(plan.optimizer_threads, 6);  // 0.8 of 8
  EXPECT_THAT(plan.optimizer, ElementsAre(2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(plan.optimizer_shares_cores);
  EXPECT_EQ(plan.node, 0);
  EXPECT_EQ(plan.text(),
            "8 CPUs 0-7 (node 0): compute 0-7 (8 threads), optimizer 2-7 (6) beside it, loop and "
            "copies 0-7 (2)");
}

TEST(CorePlan, TwoSocketsWithSmtCountCoresNotThreads) {
  const CpuTopology topology = machine_of(2, 4, 2);
  const CorePlan alone = CorePlan::of(topology, {});
  EXPECT_EQ(alone.compute_threads, 8) << "cores, not hardware threads";
  EXPECT_THAT(alone.compute, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(alone.optimizer, ElementsAre(10, 11, 12, 13, 14, 15)) << "the second threads";
  EXPECT_EQ(alone.node, -1);
  std::vector<CorePlan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    plans.push_back(CorePlan::of(topology, {.ranks = 2, .rank = rank}));
    EXPECT_EQ(plans.back().node, rank) << "a rank stays on a node";
    EXPECT_EQ(plans.back().compute_threads, 4);
  }
  expect_divided(plans, 16);
}

TEST(CorePlan, EightAcceleratorsStayNearTheirNode) {
  CpuTopology topology = machine_of(2, 32, 2);
  topology.accelerator_nodes = {1, 1, 1, 1, 0, 0, 0, 0};
  std::vector<CorePlan> plans;
  for (int rank = 0; rank < 8; ++rank) {
    plans.push_back(CorePlan::of(
        topology, {.ranks = 8, .rank = rank, .accelerator = true, .optimizer_share = 0.9}));
    const CorePlan& plan = plans.back();
    EXPECT_EQ(plan.node, rank < 4 ? 1 : 0);
    EXPECT_EQ(plan.rank.size(), 16U);
    EXPECT_EQ(plan.compute.size(), 1U);
    EXPECT_EQ(plan.optimizer_threads, 6) << "eight cores, less the lane's and the loop's";
    EXPECT_FALSE(plan.optimizer_shares_cores);
    for (const int cpu : plan.optimizer) {
      EXPECT_EQ(std::ranges::find(plan.service, cpu), plan.service.end());
      EXPECT_NE(cpu, plan.compute.front());
    }
  }
  expect_divided(plans, 128);
}

TEST(CorePlan, AContainerWithTwoCpusOfALargeMachine) {
  CpuTopology quota = machine_of(2, 32, 2);  // all may be used, two at a time
  quota.cpu_limit = 2;
  const CorePlan limited = CorePlan::of(quota, {});
  EXPECT_EQ(limited.compute_threads, 2);
  EXPECT_EQ(limited.optimizer_threads, 2);
  const CorePlan two = CorePlan::of(machine_of(1, 2, 1), {});
  EXPECT_EQ(two.compute_threads, 2);
  EXPECT_THAT(two.optimizer, ElementsAre(0, 1));
  const CorePlan beside = CorePlan::of(machine_of(1, 2, 1), {.accelerator = true});
  EXPECT_THAT(beside.compute, ElementsAre(0));
  EXPECT_THAT(beside.optimizer, ElementsAre(1));
  EXPECT_THAT(beside.service, ElementsAre(0));
  const CorePlan one = CorePlan::of(machine_of(1, 1, 1), {.accelerator = true});
  EXPECT_THAT(one.optimizer, ElementsAre(0));
  EXPECT_TRUE(one.optimizer_shares_cores);
}

TEST(CorePlan, AnAffinityWithHoles) {
  CpuTopology topology = machine_of(2, 4, 2);
  // Left are CPUs 1, 9 (both of core 1), 3 (half of core 3) and 14 (half of core 6, on the other
  // node).
  std::vector<machine::Core> left;
  for (machine::Core& core : topology.cores) {
    std::erase_if(core.cpus, [](int cpu) { return cpu != 1 && cpu != 9 && cpu != 3 && cpu != 14; });
    if (!core.cpus.empty()) {
      left.push_back(core);
    }
  }
  topology.cores = left;
  topology.cpu_limit = 4;
  const CorePlan plan = CorePlan::of(topology, {});
  EXPECT_THAT(plan.rank, ElementsAre(1, 3, 9, 14));
  EXPECT_EQ(plan.compute_threads, 3);
  EXPECT_THAT(plan.compute, ElementsAre(1, 3, 14));
  EXPECT_THAT(plan.optimizer, ElementsAre(3, 14)) << "0.8 of three cores, the last ones";
  EXPECT_THAT(plan.text(), HasSubstr("4 CPUs 1,3,9,14"));
}

TEST(CorePlan, MoreRanksThanCoresShareThem) {
  for (int rank = 0; rank < 4; ++rank) {
    const CorePlan plan = CorePlan::of(machine_of(1, 2, 1), {.ranks = 4, .rank = rank});
    EXPECT_EQ(plan.compute_threads, 1);
    EXPECT_EQ(plan.optimizer_threads, 1);
    EXPECT_EQ(plan.rank.size(), 1U);
  }
}

TEST(CorePlan, WhatTheUserAskedForWins) {
  const CorePlan plan =
      CorePlan::of(machine_of(1, 8, 1), {.compute_threads = 3, .optimizer_threads = 2});
  EXPECT_EQ(plan.compute_threads, 3);
  EXPECT_THAT(plan.optimizer, ElementsAre(6, 7));
  EXPECT_FALSE(plan.optimizer_shares_cores);
}

TEST(CorePlan, OfThisMachineNamesItsOwnCpus) {
  const CpuTopology topology = topology_of_machine(true);
  const CorePlan plan = CorePlan::of(topology, {});
  EXPECT_EQ(plan.rank, machine::affinity());
  EXPECT_LE(plan.compute_threads, machine::usable_cpus());
}

}  // namespace
}  // namespace tandem
