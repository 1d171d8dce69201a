// A value that a channel has handed over meets a timeout, a winner or a stop, and is not lost.
#include <optional>

#include <gtest/gtest.h>

#include "runtime/channel.hpp"
#include "runtime/first_of.hpp"
#include "runtime/scope.hpp"
#include "runtime/semaphore.hpp"
#include "runtime/sleep.hpp"
#include "runtime/with_deadline.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr int kValues = 50;

// A value each 10 ms, at the very moment at which the reader's timer ends.
Task<> produce(Channel<int>* channel) {
  for (int i = 1; i <= kValues; ++i) {
    co_await sleep_until(TimePoint(i * 10ms));
    (void)co_await channel->send(i);
  }
  channel->close();
}
Task<std::optional<int>> take(Channel<int>* channel) {
  co_return co_await channel->receive(co_await current_stop_token());
}
Task<std::optional<int>> tick(TimePoint at) {
  co_await sleep_until(at, co_await current_stop_token());
  co_return -1;
}

struct Choice : testing::Test {
  // read(channel, time): one attempt; a value, -1: none in time, nullopt: closed.
  template <class Read>
  void expect_all(Read read) {
    for (const std::size_t capacity : {0U, 1U, 5U}) {
      ManualClock clock;
      EventLoop loop({.name = "test", .clock = &clock});
      Channel<int> channel(capacity);
      Scope scope(loop);
      scope.spawn("producer", &produce, &channel);
      const int sum = loop.run(
          [](Channel<int>* from, ManualClock* time, Read r) -> Task<int> {
            int total = 0;
            while (const std::optional<int> value = co_await r(from, time->now() + 10ms)) {
              total += *value > 0 ? *value : 0;
            }
            co_return total;
          },
          &channel, &clock, read);
      EXPECT_EQ(sum, kValues * (kValues + 1) / 2) << capacity;
      loop.run(&Scope::join, &scope);
    }
  }
};

TEST_F(Choice, AWinnerBesideAReceiverTakesNoValue) {
  expect_all([](Channel<int>* channel, TimePoint at) -> Task<std::optional<int>> {
    co_return (co_await first_of(tick(at), take(channel))).value;
  });
  expect_all([](Channel<int>* channel, TimePoint at) -> Task<std::optional<int>> {
    co_return (co_await first_of(take(channel), tick(at))).value;
  });
}

TEST_F(Choice, ADeadlineTakesNoValue) {
  expect_all([](Channel<int>* channel, TimePoint at) -> Task<std::optional<int>> {
    try {
      co_return co_await with_deadline(at, &take, channel);
    } catch (const DeadlineExceeded&) {
      co_return -1;
    }
  });
}

TEST_F(Choice, ATimedReceiveTakesNoValue) {
  expect_all([](Channel<int>* channel, TimePoint at) -> Task<std::optional<int>> {
    try {
      co_return co_await channel->receive(at);
    } catch (const DeadlineExceeded&) {
      co_return -1;
    }
  });
}

TEST_F(Choice, TwoReceiversOfOneRace) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  Channel<int> one(1);
  Channel<int> other(1);
  EXPECT_EQ(loop.run(
                [](Channel<int>* a, Channel<int>* b) -> Task<int> {
                  int sum = 0;
                  co_await with_scope(
                      [](Scope& scope, Channel<int>* x, Channel<int>* y, int* out) -> Task<> {
                        scope.spawn(
                            "both",
                            [](Channel<int>* p, Channel<int>* q) -> Task<> {
                              co_await sleep_for(1ms);
                              (void)p->try_send(1);
                              (void)q->try_send(2);
                            },
                            x, y);
                        *out += *(co_await first_of(take(x), take(y))).value;
                      },
                      a, b, &sum);
                  sum += a->try_receive().value_or(0);
                  sum += b->try_receive().value_or(0);
                  co_return sum;
                },
                &one, &other),
            3);
}

TEST_F(Choice, ATimedReceiveEndsInTimeOrByItsStop) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  Channel<int> channel(1);
  EXPECT_THROW(loop.run([](Channel<int>* c) -> Task<> { (void)co_await c->receive(1s); }, &channel),
               DeadlineExceeded);
  EXPECT_EQ(clock.now(), TimePoint(1s));
  StopSource stop;
  stop.request_stop();
  EXPECT_THROW(loop.run([](Channel<int>* c,
                           StopToken token) -> Task<> { (void)co_await c->receive(1s, token); },
                        &channel, stop.token()),
               Stopped);
  EXPECT_TRUE(channel.try_send(4));
  EXPECT_EQ(
      loop.run([](Channel<int>* c) -> Task<int> { co_return *co_await c->receive(1s); }, &channel),
      4);
  EXPECT_EQ(loop.armed_timers(), 0U);
}

TEST_F(Choice, APermitThatMeetsATimeoutIsFreeAgain) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  Semaphore semaphore(1);
  loop.run(
      [](Semaphore* s) -> Task<> {
        std::optional<Semaphore::Permit> held = co_await s->acquire();
        co_await with_scope(
            [](Scope& scope, Semaphore* of, std::optional<Semaphore::Permit>* h) -> Task<> {
              scope.spawn(
                  "release",
                  [](std::optional<Semaphore::Permit>* p) -> Task<> {
                    co_await sleep_until(TimePoint(10ms));
                    p->reset();
                  },
                  h);
              const auto acquire = [](Semaphore* from) -> Task<bool> {
                const auto permit = co_await from->acquire(co_await current_stop_token());
                co_return true;
              };
              const auto time = []() -> Task<bool> {
                co_await sleep_until(TimePoint(10ms), co_await current_stop_token());
                co_return false;
              };
              (void)co_await first_of(time(), acquire(of));
            },
            s, &held);
        EXPECT_EQ(s->available(), 1U);
      },
      &semaphore);
}

}  // namespace
}  // namespace tandem
