#include "runtime/channel.hpp"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/random.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<> send_all(Channel<int>* channel, int from, int to) {
  const StopToken stop = co_await current_stop_token();
  for (int i = from; i < to; ++i) {
    if (!co_await channel->send(i, stop)) {
      co_return;
    }
  }
}

Task<> receive_all(Channel<int>* channel, std::vector<int>* got) {
  const StopToken stop = co_await current_stop_token();
  while (const std::optional<int> value = co_await channel->receive(stop)) {
    got->push_back(*value);
  }
}

TEST(Channel, EachValueComesOutOnceAndInOrder) {
  for (const std::size_t capacity : {0U, 1U, 3U, 1000U}) {
    EventLoop loop;
    Channel<int> channel(capacity);
    Scope senders(loop, "senders");
    Scope receivers(loop, "receivers");
    std::vector<int> got;
    receivers.spawn("receiver", &receive_all, &channel, &got);
    senders.spawn("sender", &send_all, &channel, 0, 500);
    loop.run(&Scope::join, &senders);
    channel.close();
    loop.run(&Scope::join, &receivers);
    std::vector<int> expected(500);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(got, expected) << "capacity " << capacity;
  }
}

TEST(Channel, ManySendersAndReceiversLoseNothing) {
  EventLoop loop;
  Channel<int> channel(2);
  Scope senders(loop, "senders");
  Scope receivers(loop, "receivers");
  std::vector<std::vector<int>> got(3);
  for (auto& own : got) {
    receivers.spawn("receiver", &receive_all, &channel, &own);
  }
  for (int i = 0; i < 4; ++i) {
    senders.spawn("sender", &send_all, &channel, 100 * i, 100 * (i + 1));
  }
  loop.run(&Scope::join, &senders);
  channel.close();
  loop.run(&Scope::join, &receivers);
  std::vector<int> all;
  for (const auto& own : got) {
    all.insert(all.end(), own.begin(), own.end());
  }
  std::ranges::sort(all);
  std::vector<int> expected(400);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(Channel, WhatIsInAClosedOneStillComesOut) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Channel<std::unique_ptr<int>> channel(2);
    EXPECT_TRUE(co_await channel.send(std::make_unique<int>(1)));
    EXPECT_TRUE(channel.try_send(std::make_unique<int>(2)));
    auto third = std::make_unique<int>(3);
    EXPECT_FALSE(channel.try_send(std::move(third)));
    EXPECT_EQ(*third, 3);  // as it was
    channel.close();
    EXPECT_FALSE(co_await channel.send(std::make_unique<int>(4)));
    EXPECT_EQ(**co_await channel.receive(), 1);
    EXPECT_EQ(**channel.try_receive(), 2);
    EXPECT_FALSE(co_await channel.receive());
    EXPECT_FALSE(channel.try_receive());
  });
}

TEST(Channel, CloseWakesThoseThatWait) {
  EventLoop loop;
  Channel<int> full(1);
  Channel<int> empty(1);
  Scope scope(loop, "waiting");
  std::vector<int> got;
  scope.spawn("sender", &send_all, &full, 0, 9);
  scope.spawn("receiver", &receive_all, &empty, &got);
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  EXPECT_EQ(scope.running(), 2U);
  full.close();
  empty.close();
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(full.size(), 1U);
  EXPECT_TRUE(got.empty());
}

TEST(Channel, AStopEndsThoseThatWaitAndNobodyElse) {
  EventLoop loop;
  Channel<int> channel(1);
  Scope stopped(loop, "stopped");
  Scope stays(loop, "stays");
  stopped.spawn("sender", &send_all, &channel, 0, 9);    // 0 is in it, 1 waits
  stays.spawn("sender", &send_all, &channel, 100, 102);  // 100 waits behind it
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  stopped.request_stop();
  loop.run(&Scope::join, &stopped);
  std::vector<int> got;
  Scope receivers(loop, "receivers");
  receivers.spawn("receiver", &receive_all, &channel, &got);
  loop.run(&Scope::join, &stays);
  receivers.request_stop();
  loop.run(&Scope::join, &receivers);
  EXPECT_EQ(got, (std::vector{0, 100, 101}));
}

/// Random sends, receives and stops: what was sent comes out, once, in order.
TEST(Channel, AnyInterleavingKeepsEveryValue) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    EventLoop loop;
    Channel<int> channel(seed % 4);
    std::vector<int> sent;
    std::vector<int> got;
    Scope scope(loop, "all");
    scope.spawn(
        "sender",
        [](Channel<int>* to, std::vector<int>* log, std::uint64_t s) -> Task<> {
          Random random(s);
          for (int i = 0; i < 60; ++i) {
            StopSource source;
            if (random.chance(0.2)) {
              source.request_stop();
            }
            try {
              if (co_await to->send(i, source.token())) {
                log->push_back(i);
              }
            } catch (const Stopped&) {
            }
            if (random.chance(0.3)) {
              co_await sleep_for(std::chrono::microseconds(random.below(20)));
            }
          }
          to->close();
        },
        &channel, &sent, seed);
    scope.spawn("receiver", &receive_all, &channel, &got);
    loop.run(&Scope::join, &scope);
    EXPECT_EQ(got, sent) << "seed " << seed;
  }
}

Task<> take_one(Channel<int>* channel, std::vector<int>* taken) {
  if (const auto value = co_await channel->receive(co_await current_stop_token())) {
    taken->push_back(*value);
  }
}

// Each was handed to a receiver, and all of those are stopped before their turns.
TEST(Channel, ValuesThatComeBackKeepTheirOrder) {
  for (const std::size_t capacity : {0U, 2U, 8U}) {
    EventLoop loop;
    const auto taken = loop.run(
        [](std::size_t room) -> Task<std::vector<int>> {
          Channel<int> channel(room);
          std::vector<int> values;
          Scope scope(EventLoop::current());
          for (int i = 0; i < 4; ++i) {
            scope.spawn("take", &take_one, &channel, &values);
          }
          co_await yield();
          co_await yield();
          for (int i = 0; i < 4; ++i) {
            EXPECT_TRUE(channel.try_send(int{i}));
          }
          scope.request_stop();
          co_await scope.join();
          EXPECT_EQ(channel.size(), 4U);
          EXPECT_FALSE(channel.try_send(9) && room < 4);
          for (int i = 0; i < 4; ++i) {
            values.push_back((co_await channel.receive()).value());
          }
          co_return values;
        },
        capacity);
    EXPECT_EQ(taken, (std::vector<int>{0, 1, 2, 3})) << "capacity " << capacity;
  }
}

}  // namespace
}  // namespace tandem
