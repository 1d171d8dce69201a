// Bytes and times of hosts' links against figures computed by hand.
#include "engine/scaling/host_links.hpp"

#include <utility>

#include <gtest/gtest.h>

namespace tandem {
namespace {

// 1000 elements in bf16, 8 micro-batches.
constexpr HostsWork kWork{.micro_batches = 8, .gathered = 1000, .reduced = 1000, .width = 2};

TEST(HostLinks, OneHostSendsNothing) { EXPECT_EQ(link_bytes(kWork, 1).total(), 0); }

// Two hosts: 4 micro-steps, each two gathers and a reduction of half of 2000 bytes.
TEST(HostLinks, RanksAloneSendToTheOwners) {
  const LinkBytes two = link_bytes(kWork, 2);
  EXPECT_EQ(two.gathers, 4 * 2 * 1000);
  EXPECT_EQ(two.reductions, 4 * 1000);
  // Four: 2 micro-steps, three quarters.
  const LinkBytes four = link_bytes(kWork, 4);
  EXPECT_EQ(four.gathers, 2 * 2 * 1500);
  EXPECT_EQ(four.reductions, 2 * 1500);
}

TEST(HostLinks, SumsGoAlongHostsWithSeveralRanks) {
  HostsWork work = kWork;
  work.ranks_per_host = 2;
  // Two hosts: 2 micro-steps of 4000 bytes of sums; four: 1 of 4000 and a quarter that comes back.
  EXPECT_EQ(link_bytes(work, 2).reductions, 2 * 4000);
  EXPECT_EQ(link_bytes(work, 4).reductions, 5000);
  EXPECT_EQ(link_bytes(work, 4).gathers, 2 * 1500);
  work.order = ReductionOrder::kFast;
  EXPECT_EQ(link_bytes(work, 2).reductions, 2 * 2000);
  EXPECT_EQ(link_bytes(work, 4).reductions, 3000);
}

TEST(HostLinks, StagesDifferInWhatIsGathered) {
  HostsWork work = kWork;
  work.stage = 2;
  work.kept = std::exchange(work.gathered, 0);
  EXPECT_EQ(link_bytes(work, 2).gathers, 1000) << "once for a step";
  work.stage = 0;
  EXPECT_EQ(link_bytes(work, 2).gathers, 0);
  EXPECT_EQ(link_bytes(work, 2).reductions, 4 * (1000 + 2000)) << "values there, sums back";
  work.ranks_per_host = 2;
  EXPECT_EQ(link_bytes(work, 2).reductions, 2 * 4000);
  EXPECT_EQ(link_bytes(work, 4).reductions, 1 * 8000);
}

// 0.08 s on one host; a link of 100 kB/s: two hosts are busy with 12000 bytes for 0.12 s, four with
// 9000, eight with 2 * 1750 + 1750 = 5250.
TEST(HostLinks, AStepIsComputeOrItsLink) {
  const auto all = forecast_hosts(kWork, {.bytes_per_s = 1e6}, 0.08, 8);
  ASSERT_EQ(all.size(), 4U) << "1, 2, 4 and 8 divide 8 micro-batches";
  EXPECT_DOUBLE_EQ(all[0].hidden_s, 0.08);
  EXPECT_DOUBLE_EQ(all[1].network_s, 0.012);
  EXPECT_DOUBLE_EQ(all[1].hidden_s, 0.04);
  EXPECT_DOUBLE_EQ(all[1].exposed_s, 0.052);
  EXPECT_DOUBLE_EQ(all[3].network_s, 0.00525);
  EXPECT_EQ(hosts_that_no_longer_pay(all), 0);
  const auto slow = forecast_hosts(kWork, {.bytes_per_s = 1e5}, 0.08, 8);
  EXPECT_DOUBLE_EQ(slow[1].hidden_s, 0.12);
  EXPECT_DOUBLE_EQ(slow[1].efficiency(), 0.04 / 0.12);
  EXPECT_EQ(hosts_that_no_longer_pay(slow), 2);
}

// 3 blocks: with two hosts 4 micro-steps of 3 * (2 + 1) messages' ways; hosts with two ranks: of
// 3 * (2 + 2), twice.
TEST(HostLinks, LatenciesAreCounted) {
  HostsWork work = kWork;
  work.blocks = 3;
  const LinkSpeed link{.bytes_per_s = 1e12, .latency_s = 1};
  EXPECT_NEAR(forecast_hosts(work, link, 1, 2)[1].network_s, 4 * 9, 1e-6);
  work.ranks_per_host = 2;
  EXPECT_NEAR(forecast_hosts(work, link, 1, 2)[1].network_s, 2 * 12, 1e-6);
}

}  // namespace
}  // namespace tandem
