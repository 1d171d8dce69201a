#include "actors/parameter_shard.hpp"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/memory/arena.hpp"
#include "tests/support/actor_world.hpp"
#include "tests/support/fakes/fake_backend.hpp"

namespace tandem {
namespace {

using test::FakeBackend;
using test::settle;
using test::World;

/// One unit of 5000 elements, two slots, a backend of `world_size`; visits and their ends are
/// driven by the test.
struct ShardWorld : World {
  UnitLayout layout;
  FakeBackend backend;
  Collectives collectives{{.backend = &backend}};
  HostBuffer memory;
  SlotPool slots;
  std::vector<std::byte> bytes;
  ParameterShard shard;
  std::vector<std::string> granted;
  std::vector<Placed<std::byte>> blocks;
  std::vector<std::string> errors;

  /// `block_apart`: it stays replicated, in the first slot's memory, and its shard lies elsewhere.
  explicit ShardWorld(std::uint32_t world_size = 1, std::uint32_t rank = 0,
                      bool block_apart = false)
      : layout(UnitLayout::make(5000, world_size)),
        backend(world_size, rank),
        memory(2 * layout.padded_elements * 4),
        slots({.memory = memory.data(),
               .slot_bytes = layout.padded_elements * 4,
               .plan = {.slots = 2, .max_in_flight = 2, .max_ahead = 16}}),
        bytes(layout.shard_elements * 4),
        shard({.unit = 3,
               .layout = layout,
               .type = DType::kF32,
               .shard = bytes.data(),
               .block = block_apart ? memory.data() : nullptr,
               .version = 1,
               .slots = slots.address(),
               .collectives = collectives.address()}) {
    collectives.start(scope);
    slots.start(scope);
    shard.start(scope);
  }
  ~ShardWorld() { end(); }

  void acquire(std::uint64_t version, std::uint64_t ticket) {
    scope.spawn("visit", &ShardWorld::ask, this, AcquireUnit{version, ticket});
    loop.run(&settle);
  }
  template <class Message>
  void send(Message message) {
    ASSERT_EQ(shard.address().try_send(message), SendResult::kSent);
    loop.run(&settle);
  }

 private:
  static Task<> ask(ShardWorld* world, AcquireUnit request) {
    try {
      world->blocks.push_back(co_await world->shard.address().ask(request));
      world->granted.push_back("ticket " + std::to_string(request.ticket) + " version " +
                               std::to_string(request.version));
    } catch (const std::exception& error) {
      world->errors.push_back(error.what());
    }
  }
};

TEST(ParameterShard, GathersOnceAndFindsItResident) {
  ShardWorld world;
  world.acquire(1, 0);
  world.send(ReleaseUnit{1});
  world.acquire(1, 1);
  EXPECT_EQ(world.granted, (std::vector<std::string>{"ticket 0 version 1", "ticket 1 version 1"}));
  EXPECT_EQ(world.backend.gathers.size(), 1U);
  EXPECT_EQ(world.blocks[0], world.blocks[1]);
  EXPECT_EQ(world.shard.counters().resident, 1U);
  EXPECT_EQ(world.collectives.counters().gathers.skipped, 1U);
}

TEST(ParameterShard, WaitsForItsVersionAndVoidsTheOldCopy) {
  ShardWorld world;
  world.acquire(1, 0);
  world.send(ReleaseUnit{1});
  world.acquire(2, 1);
  EXPECT_EQ(world.granted.size(), 1U);  // the optimizer has not come by
  world.send(UpdateStarts{2});
  EXPECT_EQ(world.granted.size(), 1U);
  world.send(ParamReady{2});
  EXPECT_EQ(world.granted.back(), "ticket 1 version 2");
  EXPECT_EQ(world.backend.gathers.size(), 2U);
  EXPECT_EQ(world.shard.version(), 2U);
}

TEST(ParameterShard, AVisitThatFollowsClosesWaitsForTheGather) {
  ShardWorld world;
  Event gate;
  world.backend.gate_gathers = &gate;
  world.acquire(1, 0);
  world.acquire(1, 1);  // a tied weight: the same unit, while it is still being gathered
  EXPECT_TRUE(world.granted.empty());
  gate.set();
  world.loop.run(&settle);
  EXPECT_EQ(world.granted.size(), 2U);
  EXPECT_EQ(world.backend.gathers.size(), 1U);
  world.send(ReleaseUnit{1});
  world.send(ReleaseUnit{5});
}

TEST(ParameterShard, GathersTheRightBytesAtWorldEight) {
  ShardWorld world(8, 5);
  EXPECT_EQ(world.layout.padded_elements, 8192U);
  world.acquire(1, 0);
  ASSERT_EQ(world.backend.gathers.size(), 1U);
  EXPECT_EQ(world.backend.gathers[0].shard, world.bytes.data());
  EXPECT_EQ(world.backend.gathers[0].shard_bytes, 1024U * 4);
  EXPECT_EQ(world.backend.gathers[0].block, world.memory.data());
  EXPECT_EQ(world.collectives.counters().gathers.bytes, 8192U * 4);
}

TEST(ParameterShard, ABlockApartFromItsShardIsGatheredOncePerVersion) {
  for (const std::uint32_t world_size : {1U, 2U}) {
    ShardWorld world(world_size, 0, true);
    world.acquire(1, 0);
    world.send(ReleaseUnit{1});
    world.acquire(1, 1);
    ASSERT_EQ(world.granted.size(), 2U);
    ASSERT_EQ(world.backend.gathers.size(), 1U);
    EXPECT_EQ(world.backend.gathers[0].block, world.memory.data());
    EXPECT_EQ(world.backend.gathers[0].shard, world.bytes.data());
    world.send(UpdateStarts{2});  // the shard is not what the visit holds
    world.send(ReleaseUnit{2});
    world.send(ParamReady{2});
    world.acquire(2, 2);
    EXPECT_EQ(world.granted.back(), "ticket 2 version 2");
    EXPECT_EQ(world.backend.gathers.size(), 2U);
  }
}

TEST(ParameterShard, AFailedGatherReachesTheAsker) {
  ShardWorld world;
  world.backend.fail_gather = 0;
  world.acquire(1, 0);
  ASSERT_EQ(world.errors.size(), 1U);
  EXPECT_NE(world.errors[0].find("the link is down"), std::string::npos);
}

TEST(ParameterShard, StopsWithVisitsWaiting) {
  ShardWorld world;
  world.acquire(9, 0);  // a version that never comes
  world.end();
  EXPECT_EQ(world.errors.size(), 1U);
  EXPECT_TRUE(world.scope.failures().empty());
}

TEST(ParameterShardDeathTest, AnUpdateDuringAGatherIsCaught) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ShardWorld world;
        Event gate;
        world.backend.gate_gathers = &gate;
        world.acquire(1, 0);
        world.send(UpdateStarts{2});
      },
      "not overwritten while a gather reads it");
  EXPECT_DEATH(
      {
        ShardWorld world;
        world.send(UpdateStarts{2});
        world.acquire(1, 0);
      },
      "no visit of a version under update");
}

}  // namespace
}  // namespace tandem
