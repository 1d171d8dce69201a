// Stopping at every suspension point of every awaitable: a stop is a request, the operation ends,
// and nothing is left.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Fill {
  int value;
};
struct AnsweredLate {
  using Reply = int;
};
struct Never {
  using Reply = int;
};
// Room for one message; each takes a virtual second.
struct Narrow : Actor<Narrow, Fill, AnsweredLate, Never> {
  Narrow() : Actor("narrow", 1) {}
  Task<> handle(Fill) {
    co_await sleep_for(1s);
    ++handled;
  }
  Task<int> handle(AnsweredLate) {
    co_await sleep_for(1s);
    co_return 1;
  }
  void handle(Never, ReplyTo<Never> reply) { kept.push_back(std::move(reply)); }
  int handled = 0;
  std::vector<ReplyTo<Never>> kept;
};

struct Witness {
  int points = 0;     // awaits that ended
  int destroyed = 0;  // frames that unwound
  bool finished = false;
};
struct Unwound {
  Witness* witness;
  ~Unwound() { ++witness->destroyed; }
};

// Every awaitable that takes a stop token, one after the other.
Task<> everything(Witness* witness, Narrow* actor, StopToken stop) {
  const Unwound unwound{witness};
  const auto address = actor->address();
  co_await sleep_for(1s, stop);
  ++witness->points;
  co_await sleep_until(EventLoop::current().now() + 1s, stop);
  ++witness->points;
  Event event;
  Scope helpers(EventLoop::current(), "helpers");
  helpers.spawn(
      "setter",
      [](Event* e) -> Task<> {
        co_await sleep_for(1s);
        e->set();
      },
      &event);
  std::exception_ptr error;
  try {
    co_await event.wait(stop);
  } catch (...) {
    error = std::current_exception();
  }
  co_await helpers.join();
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  ++witness->points;
  for (int i = 0; i < 3; ++i) {  // the mailbox has room for one: these waits in the wait queue
    co_await address.send(Fill{i}, stop);
    ++witness->points;
  }
  (void)co_await address.ask(AnsweredLate{}, stop);
  ++witness->points;
  (void)co_await address.ask(AnsweredLate{}, 1h, stop);
  ++witness->points;
  try {
    (void)co_await address.ask(Never{}, 1s, stop);
  } catch (const DeadlineExceeded&) {
    ++witness->points;
  }
  Latch latch(1);
  helpers.spawn(
      "counter",
      [](Latch* l) -> Task<> {
        co_await sleep_for(1s);
        l->count_down();
      },
      &latch);
  try {
    co_await latch.wait(stop);
  } catch (...) {
    error = std::current_exception();
  }
  co_await helpers.join();
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  ++witness->points;
  witness->finished = true;
}

// Stops the task at the virtual time `stop_at`; returns what it saw.
Witness run_until(Duration stop_at) {
  ManualClock clock;
  EventLoop loop({.name = "cancel", .clock = &clock});
  Scope actors(loop, "actors");
  Scope scope(loop, "scope");
  Narrow narrow;
  narrow.start(actors);
  Witness witness;
  scope.spawn("everything", &everything, &witness, &narrow, scope.stop_token());
  loop.run(
      [](Scope* s, Duration at) -> Task<> {
        co_await sleep_for(at);
        s->request_stop();
        co_await s->join();
      },
      &scope, stop_at);
  EXPECT_EQ(scope.running(), 0U);
  EXPECT_EQ(witness.destroyed, 1);
  EXPECT_EQ(loop.asks().pending(), 0U);
  narrow.close();
  loop.run(&Scope::join, &actors);
  return witness;
}

TEST(Cancel, AtEverySuspensionPointOfEveryAwaitable) {
  const Witness whole = run_until(1h);
  ASSERT_TRUE(whole.finished);
  std::vector<bool> stopped_after(static_cast<std::size_t>(whole.points) + 1);
  // In steps shorter than any wait, so that each of them is hit.
  for (Duration at = 0ms; at < 20s; at += 250ms) {
    const Witness witness = run_until(at);
    ASSERT_LE(witness.points, whole.points);
    stopped_after[static_cast<std::size_t>(witness.points)] = true;
    EXPECT_EQ(witness.finished, witness.points == whole.points) << "at " << at.count();
  }
  // The first two sends find room at once, or nearly: no wait between them to be stopped in.
  for (std::size_t point = 0; point < stopped_after.size(); ++point) {
    if (point == 3 || point == 4) {
      continue;
    }
    EXPECT_TRUE(stopped_after[point]) << "no run was stopped after point " << point;
  }
}

TEST(Cancel, AStopBeforeTheAwaitEndsItAtOnce) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    StopSource source;
    source.request_stop();
    Event event;
    EXPECT_THROW(source.token().throw_if_stopped(), Stopped);
    int stopped = 0;
    try {
      co_await sleep_for(1h, source.token());
    } catch (const Stopped&) {
      ++stopped;
    }
    try {
      co_await event.wait(source.token());
    } catch (const Stopped&) {
      ++stopped;
    }
    EXPECT_EQ(stopped, 2);
  });
}

TEST(Cancel, AStopThatComesWithTheCompletionLoses) {
  // Both in one turn of the loop: the sleep has fired, so it ends normally, once.
  ManualClock clock(ManualClock::Idle::kWait);
  EventLoop loop({.clock = &clock});
  StopSource source;
  Scope scope(loop);
  int ended = 0;
  Event event;
  scope.spawn(
      "event",
      [](StopToken stop, Event* e, int* out) -> Task<> {
        co_await e->wait(stop);
        ++*out;
      },
      source.token(), &event, &ended);
  loop.run([]() -> Task<> { co_await yield(); });
  event.set();
  source.request_stop();
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(ended, 1);
}

TEST(Cancel, NestedSourcesStopWithTheirParentOnly) {
  StopSource parent;
  StopSource child(parent.token());
  StopSource sibling(parent.token());
  child.request_stop();
  EXPECT_FALSE(parent.stop_requested());
  EXPECT_FALSE(sibling.stop_requested());
  parent.request_stop();
  EXPECT_TRUE(sibling.stop_requested());
  StopSource late(parent.token());
  EXPECT_TRUE(late.stop_requested());
}

TEST(CancelDeathTest, AFrameInFlightIsNeverDestroyed) {
  if (!kDebugChecks) {
    GTEST_SKIP() << "this check is on in debug and sanitizer builds only";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        loop.run([]() -> Task<> {
          // Started without being awaited to its end, and dropped while it sleeps.
          struct Start : std::suspend_always {
            explicit Start(Task<>::Awaiter& task) : inner(task) {}
            bool await_suspend(std::coroutine_handle<Task<>::promise_type> self) const {
              inner.await_suspend(self).resume();
              return false;
            }
            Task<>::Awaiter& inner;
          };
          auto task = []() -> Task<> { co_await sleep_for(1h); }();
          auto awaiter = std::move(task).operator co_await();
          co_await Start(awaiter);
        });
      },
      "in flight");
}

}  // namespace
}  // namespace tandem
