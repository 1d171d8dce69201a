#include "actors/slot_pool.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "actors/memory/arena.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/actor_world.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using test::settle;
using test::World;

struct PoolWorld : World {
  static constexpr std::size_t kSlotBytes = 4096;
  HostBuffer memory{3 * kSlotBytes};
  SlotPool slots{{.memory = memory.data(),
                  .slot_bytes = kSlotBytes,
                  .plan = {.slots = 3, .max_in_flight = 2, .max_ahead = 16}}};
  std::vector<std::uint64_t> order;   // tickets, as they were granted
  std::vector<SlotGrant> grants{32};  // by ticket

  PoolWorld() { slots.start(scope); }
  ~PoolWorld() { end(); }

  void acquire(std::uint64_t ticket, std::uint32_t unit, std::uint64_t version = 1) {
    scope.spawn("visit", &PoolWorld::ask, this, AcquireSlot{ticket, unit, version});
  }
  void release(std::uint64_t ticket, std::uint64_t next_use) {
    ASSERT_EQ(slots.address().try_send(ReleaseSlot{ticket, next_use}), SendResult::kSent);
  }
  std::size_t slot_of(std::uint64_t ticket) const {
    return static_cast<std::size_t>(grants[ticket].data.host() - memory.data()) / kSlotBytes;
  }

 private:
  static Task<> ask(PoolWorld* world, AcquireSlot request) {
    try {
      world->grants[request.ticket] = co_await world->slots.address().ask(request);
      world->order.push_back(request.ticket);
    } catch (const std::exception&) {
      // the pool ended first
    }
  }
};

TEST(SlotPool, GrantsInTicketOrderAndKeepsContents) {
  PoolWorld world;
  world.acquire(2, 12);
  world.acquire(1, 11);
  world.loop.run(&settle);
  EXPECT_TRUE(world.order.empty());
  world.acquire(0, 10);
  world.loop.run(&settle);
  EXPECT_EQ(world.order, (std::vector<std::uint64_t>{0, 1}));  // two in flight, at most
  world.release(0, 4);
  world.loop.run(&settle);
  EXPECT_EQ(world.order, (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(world.slot_of(2), 2U);  // a slot that was never used, not the released one
  world.release(1, 9);
  world.release(2, 8);
  world.acquire(3, 13);
  world.acquire(4, 10);
  world.loop.run(&settle);
  EXPECT_EQ(world.slot_of(3), 1U);  // unit 11 was needed last
  EXPECT_TRUE(world.grants[4].resident);
  EXPECT_EQ(world.grants[4].data, world.grants[0].data);
  EXPECT_EQ(world.slots.counters().grants, 5U);
  EXPECT_EQ(world.slots.counters().resident, 1U);
  EXPECT_EQ(world.slots.counters().in_flight_max, 2U);
}

TEST(HostBuffer, IsAlignedZeroedAndMovable) {
  HostBuffer buffer(5 << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
  buffer.touch();
  for (std::size_t i = 0; i < buffer.size_bytes(); i += 4093) {
    ASSERT_EQ(buffer.data()[i], std::byte{0});
  }
  buffer.as<std::uint32_t>()[7] = 9;
  const std::byte* data = buffer.data();
  HostBuffer moved(std::move(buffer));
  EXPECT_EQ(moved.data(), data);
  moved.touch();
  EXPECT_EQ(moved.as<std::uint32_t>()[7], 9U);
  EXPECT_EQ(HostBuffer(0).data(), nullptr);
}

TEST(HostBuffer, RefusesWhatDoesNotFit) {
  EXPECT_THAT([] { HostBuffer buffer(std::size_t{1} << 60); },
              ThrowsError(ExitCode::kRefused, ::testing::HasSubstr("1152921504606846976")));
}

}  // namespace
}  // namespace tandem
