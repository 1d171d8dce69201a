#include "runtime/semaphore.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/clock.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/shutdown.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Log {
  int inside = 0;
  int most = 0;
  std::vector<int> order;
};

Task<> work(Semaphore* semaphore, Log* log, int number) {
  const StopToken stop = co_await current_stop_token();
  const Semaphore::Permit permit = co_await semaphore->acquire(stop);
  log->order.push_back(number);
  log->most = std::max(log->most, ++log->inside);
  co_await sleep_for(1s, stop);
  --log->inside;
}

TEST(Semaphore, LetsSoManyInAndInTheirOrder) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  Semaphore semaphore(2);
  Scope scope(loop, "workers");
  Log log;
  for (int i = 0; i < 6; ++i) {
    scope.spawn("worker", &work, &semaphore, &log, i);
  }
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(log.most, 2);
  EXPECT_EQ(log.order, (std::vector{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(clock.now(), TimePoint(3s));
  EXPECT_EQ(semaphore.available(), 2U);
}

TEST(Semaphore, APermitGoesToTheOneThatWaitsAndNotToTheNextThatComes) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Semaphore semaphore(1);
    std::optional<Semaphore::Permit> first = semaphore.try_acquire();
    EXPECT_TRUE(first.has_value());
    Scope scope(EventLoop::current(), "waits");
    Log log;
    scope.spawn("waits", &work, &semaphore, &log, 1);
    co_await sleep_for(1ms);
    first.reset();
    EXPECT_FALSE(semaphore.try_acquire().has_value());  // it is on its way to the other
    scope.request_stop();
    co_await scope.join();
    EXPECT_EQ(log.order, std::vector{1});
    EXPECT_EQ(semaphore.available(), 1U);
  });
}

TEST(Semaphore, OneThatStopsLeavesTheOthersTheirTurn) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Semaphore semaphore(1);
    Semaphore::Permit permit = co_await semaphore.acquire();
    Scope first(EventLoop::current(), "first");
    Scope second(EventLoop::current(), "second");
    Log log;
    first.spawn("first", &work, &semaphore, &log, 1);
    second.spawn("second", &work, &semaphore, &log, 2);
    co_await sleep_for(1ms);
    first.request_stop();
    co_await first.join();
    permit.release();
    permit.release();  // harmless
    co_await sleep_for(1ms);
    EXPECT_EQ(log.order, std::vector{2});
    second.request_stop();
    co_await second.join();
  });
}

TEST(Semaphore, AStopBeforeTheAwaitTakesNoPermit) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Semaphore semaphore(1);
    StopSource source;
    source.request_stop();
    bool stopped = false;
    try {
      (void)co_await semaphore.acquire(source.token());
    } catch (const Stopped&) {
      stopped = true;
    }
    EXPECT_TRUE(stopped);
    EXPECT_EQ(semaphore.available(), 1U);
  });
}

TEST(Semaphore, AShutdownEndsThoseThatWaitAndAChainNamesIt) {
  EventLoop loop;
  Semaphore semaphore(1);
  const std::optional<Semaphore::Permit> permit = semaphore.try_acquire();
  Scope root(loop, "root");
  Log log;
  root.spawn("waits", &work, &semaphore, &log, 1);
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  EXPECT_NE(root.describe().find("[semaphore]"), std::string::npos) << root.describe();
  const bool clean = loop.run(
      [](Scope* scope) -> Task<bool> {
        Shutdown shutdown(*scope, {.handle = 1s, .drain = 5s});
        co_return (co_await shutdown.run()).clean;
      },
      &root);
  EXPECT_TRUE(clean);
  EXPECT_TRUE(log.order.empty());
}

}  // namespace
}  // namespace tandem
