#include "actors/collectives/collectives.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/actor_world.hpp"
#include "tests/support/fakes/fake_backend.hpp"

namespace tandem {
namespace {

using test::FakeBackend;
using test::settle;
using test::World;

struct CollectivesWorld : World {
  FakeBackend backend;
  Collectives collectives{{.backend = &backend}};
  std::vector<std::string> replies;
  std::vector<std::string> errors;

  explicit CollectivesWorld(std::uint32_t ranks = 1) : backend(ranks) { collectives.start(scope); }
  ~CollectivesWorld() { end(); }

  void gather(std::uint64_t order) {
    scope.spawn("asker", &CollectivesWorld::ask_gather, this, order);
  }
  void reduce(std::uint64_t order) {
    scope.spawn("asker", &CollectivesWorld::ask_reduction, this, order);
  }

 private:
  static Task<> ask_gather(CollectivesWorld* world, std::uint64_t order) {
    try {
      co_await world->collectives.address().ask(AllGather{order, {}});
      world->replies.push_back("gather " + std::to_string(order));
    } catch (const std::exception& error) {
      world->errors.push_back("gather " + std::to_string(order) + ": " + error.what());
    }
  }
  static Task<> ask_reduction(CollectivesWorld* world, std::uint64_t order) {
    try {
      co_await world->collectives.address().ask(ReduceScatterAdd{order, {}});
      world->replies.push_back("reduce " + std::to_string(order));
    } catch (const std::exception& error) {
      world->errors.push_back("reduce " + std::to_string(order) + ": " + error.what());
    }
  }
};

void settle_on(World& world) { world.loop.run(&settle); }

TEST(Collectives, IssuesByOrderNumberNeverByArrival) {
  CollectivesWorld world;
  for (const std::uint64_t order : {3U, 1U, 2U}) {
    world.gather(order);
  }
  settle_on(world);
  EXPECT_TRUE(world.backend.gathers.empty());  // number 0 has not come
  world.gather(0);
  settle_on(world);
  EXPECT_EQ(world.replies,
            (std::vector<std::string>{"gather 0", "gather 1", "gather 2", "gather 3"}));
  EXPECT_FALSE(world.backend.overlapped);
  EXPECT_EQ(world.collectives.counters().gathers.operations, 4U);
  EXPECT_GE(world.collectives.counters().gathers.held_max, 3U);
}

TEST(Collectives, ASkippedNumberLetsTheNextGo) {
  CollectivesWorld world;
  world.gather(1);
  world.gather(3);
  settle_on(world);
  EXPECT_TRUE(world.replies.empty());
  EXPECT_EQ(world.collectives.address().try_send(SkipGather{0}), SendResult::kSent);
  EXPECT_EQ(world.collectives.address().try_send(SkipGather{2}), SendResult::kSent);
  settle_on(world);
  EXPECT_EQ(world.replies, (std::vector<std::string>{"gather 1", "gather 3"}));
  EXPECT_EQ(world.collectives.counters().gathers.skipped, 2U);
}

TEST(Collectives, GathersAndReductionsDoNotWaitForEachOther) {
  CollectivesWorld world;
  Event gate;
  world.backend.gate_gathers = &gate;
  world.gather(0);
  world.gather(1);
  world.reduce(1);
  world.reduce(0);
  settle_on(world);
  EXPECT_EQ(world.replies, (std::vector<std::string>{"reduce 0", "reduce 1"}));
  EXPECT_EQ(world.backend.gathers.size(), 1U);  // one gather under way, the next waits for it
  gate.set();
  settle_on(world);
  EXPECT_EQ(world.replies.size(), 4U);
  EXPECT_FALSE(world.backend.overlapped);
}

TEST(Collectives, TheNormTakesANumberOfTheReductions) {
  CollectivesWorld world;
  world.scope.spawn(
      "norm",
      [](CollectivesWorld* w) -> Task<> {
        AllReduceNorm request{.order = 1};
        request.local.sum_of_squares.add(2.5);
        request.local.first_bad_element = 7;
        const GradientNorm norm = co_await w->collectives.address().ask(std::move(request));
        EXPECT_EQ(norm.sum_of_squares.value(), 2.5);
        EXPECT_EQ(norm.first_bad_element, 7);
        w->replies.push_back("norm");
      },
      &world);
  settle_on(world);
  EXPECT_TRUE(world.replies.empty());
  world.reduce(0);
  settle_on(world);
  EXPECT_EQ(world.replies, (std::vector<std::string>{"reduce 0", "norm"}));
}

template <class Request>
Task<> ask_for(CollectivesWorld* world, Request request, std::string name) {
  co_await world->collectives.address().ask(request);
  world->replies.push_back(name);
}

TEST(Collectives, EveryKindTakesANumberOfItsSequence) {
  CollectivesWorld world;
  world.scope.spawn("asker", &ask_for<AllToAll>, &world, AllToAll{1, {}}, std::string("pieces"));
  world.scope.spawn("asker", &ask_for<Exchange>, &world, Exchange{0, std::vector<std::byte>(8)},
                    std::string("words"));
  world.reduce(2);
  settle_on(world);
  EXPECT_EQ(world.replies, (std::vector<std::string>{"words"}));
  world.gather(0);
  world.scope.spawn(
      "asker",
      [](CollectivesWorld* w) -> Task<> {
        (void)co_await w->collectives.address().ask(AllReduceAdd{1, {.shard_elements = 512}});
      },
      &world);
  settle_on(world);
  EXPECT_EQ(world.backend.log, (std::vector<std::string>{"exchange 8", "gather 0", "all-reduce 0",
                                                         "all-to-all 0", "reduce 1"}));
  EXPECT_FALSE(world.backend.overlapped);
  EXPECT_EQ(world.collectives.counters().gathers.operations, 2U);
  EXPECT_EQ(world.collectives.counters().reductions.operations, 3U);
  EXPECT_EQ(world.collectives.counters().reductions.bytes, 8 + 512 * 4U);
}

TEST(Collectives, TheNormMergesEveryRanks) {
  CollectivesWorld world{3};
  const GradientNorm norm = world.loop.run(
      [](CollectivesWorld* w) -> Task<GradientNorm> {
        AllReduceNorm request{.order = 0};
        request.local.sum_of_squares.add(2.5);
        co_return co_await w->collectives.address().ask(std::move(request));
      },
      &world);
  EXPECT_EQ(norm.sum_of_squares.value(), 7.5);
  EXPECT_EQ(norm.first_bad_element, -1);
}

TEST(Collectives, AnErrorFailsEverythingHeldAndLater) {
  CollectivesWorld world;
  world.backend.fail_gather = 1;
  world.gather(0);
  world.gather(1);
  world.gather(2);
  world.gather(5);
  world.reduce(3);
  settle_on(world);
  EXPECT_EQ(world.replies, (std::vector<std::string>{"gather 0"}));
  ASSERT_EQ(world.errors.size(), 4U);
  for (const std::string& error : world.errors) {
    EXPECT_NE(error.find("the link is down"), std::string::npos) << error;
  }
  ASSERT_EQ(world.scope.failures().size(), 1U);
  EXPECT_TRUE(world.scope.stop_requested());  // a collective's error ends the rank
}

}  // namespace
}  // namespace tandem
