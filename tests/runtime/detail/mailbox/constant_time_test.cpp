// However many messages wait, for one more to come and for one to go takes constant time: each of
// these took minutes where it walked a queue.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/channel.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"
#include "runtime/with_deadline.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr int kCount = kDebugChecks ? 10'000 : 100'000;

struct Add {
  int value;
};
struct Counter : Actor<Counter, Add> {
  Counter() : Actor("counter", 4) {}
  void handle(Add m) { sum += m.value; }
  std::int64_t sum = 0;
};

Task<> send(Counter::AddressType to, int value) {
  co_await to.send(Add{value}, co_await current_stop_token());
}

struct ConstantTime : testing::Test {
  void spawn_senders(const Counter::AddressType& to, int value) {
    for (int i = 0; i < kCount; ++i) {
      senders.spawn("send", &send, to, value);
    }
  }
  EventLoop loop;
  Scope actors{loop, "actors"};
  Scope senders{loop, "senders"};
};

// The second share's wait behind all of the first's.
TEST_F(ConstantTime, SendersOfTwoSharesTakeTurns) {
  Counter& counter = actors.start<Counter>();
  spawn_senders(counter.address().with_credits(1), 1);
  spawn_senders(counter.address().with_credits(1), 10);
  loop.run(&Scope::join, &senders);
  loop.run(&Scope::join, &actors);
  EXPECT_EQ(counter.sum, std::int64_t{kCount} * 11);
}

TEST_F(ConstantTime, SendersOfManySharesAreStopped) {
  struct Never : Actor<Never, Add> {
    Never() : Actor("never", 1'000'000) {}
    Task<> handle(Add) {
      const StopToken stop = co_await current_stop_token();
      co_await sleep_for(1h, stop);
    }
  };
  Never& never = actors.start<Never>();
  for (int share = 0; share < 100; ++share) {
    const auto mine = never.address().with_credits(1);
    for (int i = 0; i < kCount / 100; ++i) {
      senders.spawn(
          "send",
          [](Never::AddressType to) -> Task<> {
            co_await to.send(Add{1}, co_await current_stop_token());
          },
          mine);
    }
  }
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  EXPECT_EQ(senders.running(), static_cast<std::size_t>(kCount) - 101);  // one is handled
  senders.request_stop();
  loop.run(&Scope::join, &senders);
  actors.request_stop();
  loop.run(&Scope::join, &actors);
}

struct MergingSum : Actor<MergingSum, Add> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  static bool coalesce(Add& waiting, Add&& newer) {
    waiting.value += newer.value;
    return true;
  }
  explicit MergingSum(std::uint32_t room) : Actor("merging", room) {}
  void handle(Add m) {
    sum += m.value;
    ++handled;
  }
  std::int64_t sum = 0;
  int handled = 0;
};

TEST_F(ConstantTime, MessagesAreMergedIntoALongQueue) {
  MergingSum& merging = actors.start<MergingSum>(std::uint32_t{kCount});
  const auto to = merging.address();
  loop.run(
      [](MergingSum::AddressType target) -> Task<> {
        for (int i = 0; i < 2 * kCount; ++i) {
          EXPECT_EQ(target.try_send(Add{1}), SendResult::kSent);
        }
        co_return;
      },
      to);
  EXPECT_EQ(to.metrics().coalesced, static_cast<std::uint64_t>(kCount));
  loop.run(&Scope::join, &actors);
  EXPECT_EQ(merging.sum, 2 * kCount);
  EXPECT_EQ(merging.handled, kCount);
}

struct Newest : Actor<Newest, Add> {
  static constexpr WhenFull kWhenFull = WhenFull::kDropOldest;
  explicit Newest(std::uint32_t room) : Actor("newest", room) {}
  void handle(Add m) { sum += m.value; }
  std::int64_t sum = 0;
};

// The greedy sender's own messages lie behind all of the other's.
TEST_F(ConstantTime, TheOldestOfAShareIsDropped) {
  constexpr std::uint32_t kMany = kCount;
  Newest& newest = actors.start<Newest>(kMany + 10);
  const auto other = newest.address().with_credits(kMany);
  const auto greedy = newest.address().with_credits(5);
  loop.run(
      [](Newest::AddressType first, Newest::AddressType second) -> Task<> {
        for (int i = 0; i < kCount; ++i) {
          EXPECT_EQ(first.try_send(Add{1}), SendResult::kSent);
        }
        for (int i = 0; i < kCount; ++i) {
          EXPECT_EQ(second.try_send(Add{i}), SendResult::kSent);
        }
        EXPECT_EQ(second.depth(), kMany + 5);
        co_return;
      },
      other, greedy);
  EXPECT_EQ(newest.metrics().dropped, kMany - 5);
  loop.run(&Scope::join, &actors);
  EXPECT_EQ(newest.sum, kCount + 5 * (std::int64_t{kCount} - 3));  // the last five
}

TEST_F(ConstantTime, AScopeClosesItsActors) {
  for (int i = 0; i < kCount; ++i) {
    actors.start<Counter>();
  }
  loop.run(&Scope::join, &actors);
  EXPECT_EQ(actors.running(), 0U);
}

TEST_F(ConstantTime, JobsLeaveALongQueueOfAPool) {
  CpuPool pool(loop, {.threads = 3});
  for (int i = 0; i < kCount; ++i) {
    senders.spawn("job", [](CpuPool* on) -> Task<> { co_await on->run([] {}); }, &pool);
  }
  loop.run(&Scope::join, &senders);
}

// The timers are due, and lie in the loop's queue behind all that waited.
TEST(ConstantTimeDue, WhatEndsBeforeItsDueTimerLeavesIt) {
  ManualClock clock(ManualClock::Idle::kWait);
  EventLoop loop({.clock = &clock});
  Scope scope(loop);
  Event event;
  Channel<int> channel(0);
  const TimePoint deadline = loop.now() + 1s;
  for (int i = 0; i < kCount / 2; ++i) {
    scope.spawn(
        "deadline",
        [](Event* what, TimePoint at) -> Task<> {
          co_await with_deadline(at, [](Event* e) -> Task<> { co_await *e; }, what);
        },
        &event, deadline);
    scope.spawn(
        "receive",
        [](Channel<int>* from, TimePoint at) -> Task<> { (void)co_await from->receive(at); },
        &channel, deadline);
  }
  while (loop.run_ready(1000) > 0) {
  }
  loop.post([&] {
    event.set();
    channel.close();
  });
  EXPECT_EQ(loop.run_ready(1), 1U);
  clock.advance(2s);
  while (loop.run_ready(1000) > 0) {
  }
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(loop.armed_timers(), 0U);
}

}  // namespace
}  // namespace tandem
