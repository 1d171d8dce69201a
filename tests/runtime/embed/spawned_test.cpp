// The result of a spawned task, a race over a range, and several permits at once.
#include "runtime/spawned.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/first_of.hpp"
#include "runtime/report.hpp"
#include "runtime/semaphore.hpp"
#include "runtime/sleep.hpp"
#include "runtime/with_deadline.hpp"
#include "tests/runtime/embed/report_fixture.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<int> after(Duration time, int value) {
  co_await sleep_for(time, co_await current_stop_token());
  co_return value;
}
Task<int> fail_after(Duration time) {
  co_await sleep_for(time, co_await current_stop_token());
  throw std::runtime_error("out of paper");
}

struct SpawnedTest : ReportFixture {};

TEST_F(SpawnedTest, GivesWhatTheTaskReturned) {
  Scope scope(loop);
  std::vector<Spawned<int>> all;  // in a vector: they move
  for (int i = 0; i < 5; ++i) {
    all.push_back(spawn_result(scope, "after", &after, Duration(1s * (5 - i)), i));
  }
  const int sum = loop.run(
      [](std::vector<Spawned<int>>* each) -> Task<int> {
        int total = 0;
        for (Spawned<int>& one : *each) {
          total += co_await one.result();
          EXPECT_TRUE(one.done());
        }
        co_return total;
      },
      &all);
  EXPECT_EQ(sum, 10);
  EXPECT_EQ(clock.now(), TimePoint(5s));  // side by side
  loop.run(&Scope::join, &scope);
}

TEST_F(SpawnedTest, AFailureIsForWhoeverHoldsIt) {
  Scope scope(loop);
  Spawned<int> fails = spawn_result(scope, "fails", &fail_after, Duration(1s));
  scope.spawn("other", []() -> Task<> { co_await sleep_for(2s, co_await current_stop_token()); });
  EXPECT_THROW(
      loop.run([](Spawned<int>* f) -> Task<int> { co_return co_await f->result(); }, &fails),
      std::runtime_error);
  loop.run(&Scope::join, &scope);  // which has not failed
  EXPECT_EQ(clock.now(), TimePoint(2s));
  EXPECT_TRUE(g_said.empty());
}

TEST_F(SpawnedTest, AFailureThatNobodyHoldsIsTheScopes) {
  Scope scope(loop);
  {
    const Spawned<int> gone = spawn_result(scope, "fails", &fail_after, Duration(1s));
  }
  EXPECT_THROW(loop.run(&Scope::join, &scope), std::runtime_error);
}

TEST_F(SpawnedTest, AFailureThatNobodyAskedForIsSaid) {
  Scope scope(loop);
  {
    const Spawned<int> never_asked = spawn_result(scope, "fails", &fail_after, Duration(1s));
    loop.run(&Scope::join, &scope);
    EXPECT_TRUE(g_said.empty());
  }
  ASSERT_EQ(g_said.size(), 1U);
  EXPECT_NE(g_said[0].find("out of paper"), std::string::npos);
}

TEST_F(SpawnedTest, AStopEndsTheWaitAndNotTheTask) {
  Scope scope(loop);
  Spawned<int> slow = spawn_result(scope, "slow", &after, Duration(1h), 7);
  StopSource stop;
  stop.request_stop();
  EXPECT_THROW(loop.run([](Spawned<int>* s,
                           StopToken token) -> Task<int> { co_return co_await s->result(token); },
                        &slow, stop.token()),
               Stopped);
  EXPECT_EQ(loop.run([](Spawned<int>* s) -> Task<int> { co_return co_await s->result(); }, &slow),
            7);
  loop.run(&Scope::join, &scope);
}

TEST_F(SpawnedTest, AResultThatMeetsADeadlineIsKept) {
  Scope scope(loop);
  Spawned<int> soon = spawn_result(scope, "soon", &after, Duration(1s), 7);
  const auto ask = [](Spawned<int>* from) -> Task<int> {
    co_return co_await from->result(co_await current_stop_token());
  };
  EXPECT_THROW(
      loop.run([](Spawned<int>* from,
                  auto asks) -> Task<int> { co_return co_await with_deadline(1s, asks, from); },
               &soon, ask),
      DeadlineExceeded);
  EXPECT_TRUE(soon.done());  // in the same turn
  EXPECT_EQ(loop.run(ask, &soon), 7);
  loop.run(&Scope::join, &scope);
}

// ---- a race over a range
Task<int> by_index(int index) {
  co_return co_await after(Duration(1s) * (index == 2 ? 1 : 10 + index), 100 + index);
}
Task<int> only_the_last(int index) {
  if (index < 3) {
    throw std::runtime_error("no " + std::to_string(index));
  }
  co_return co_await after(1s, index);
}
Task<int> none(int index) {
  co_await sleep_for(Duration(1s) * (3 - index));
  throw std::runtime_error("no " + std::to_string(index));
}

TEST_F(SpawnedTest, FirstOfARangeIsTheFirstThatSucceeds) {
  loop.run([]() -> Task<> {
    const std::vector<int> items{0, 1, 2, 3};
    const First<int> quickest = co_await first_of(items, &by_index);
    EXPECT_EQ(quickest.index, 2U);
    EXPECT_EQ(quickest.value, 102);
    EXPECT_EQ((co_await first_of(items, &only_the_last)).index, 3U);
  });
  EXPECT_EQ(clock.now(), TimePoint(2s));  // the others were stopped
  EXPECT_THAT(
      [&] { loop.run([]() -> Task<> { (void)co_await first_of(std::vector<int>{0, 1}, &none); }); },
      testing::ThrowsMessage<std::runtime_error>("no 1"));
  EXPECT_THROW(loop.run([]() -> Task<> { (void)co_await first_of(std::vector<int>(), &by_index); }),
               Error);
}

// ---- several permits
Task<> use(Semaphore* semaphore, std::size_t count, Duration time, std::string* order, char name,
           StopToken stop) {
  const Semaphore::Permit permits = co_await semaphore->acquire(count, stop);
  order->push_back(name);
  co_await sleep_for(time);
}

TEST_F(SpawnedTest, SeveralPermitsAreTakenAtOnceAndInOrder) {
  Semaphore semaphore(4);
  std::string order;
  Scope scope(loop);
  const auto spawn = [&](std::size_t count, Duration time, char name, StopToken stop = {}) {
    scope.spawn("use", &use, &semaphore, count, time, &order, name, stop);
  };
  spawn(3, 1s, 'a');
  spawn(4, 1s, 'b');  // waits for all; those behind it do not overtake it
  spawn(1, 1s, 'c');
  spawn(2, 1s, 'd');
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(order, "abcd");
  EXPECT_EQ(clock.now(), TimePoint(3s));
  EXPECT_EQ(semaphore.available(), 4U);
}

TEST_F(SpawnedTest, OneThatGivesUpLetsThoseBehindItIn) {
  Semaphore semaphore(4);
  std::string order;
  Scope scope(loop);
  StopSource stop;
  scope.spawn("a", &use, &semaphore, 3U, Duration(1h), &order, 'a', StopToken());
  scope.spawn(
      "b",
      [](Semaphore* s, std::string* out, StopToken token) -> Task<> {
        try {
          co_await use(s, 4, 1s, out, 'b', token);
        } catch (const Stopped&) {
        }
      },
      &semaphore, &order, stop.token());
  scope.spawn("c", &use, &semaphore, 1U, Duration(1s), &order, 'c', StopToken());
  loop.run([]() -> Task<> { co_await sleep_for(1s); });
  EXPECT_EQ(order, "a");
  stop.request_stop();
  loop.run([]() -> Task<> { co_await sleep_for(1s); });
  EXPECT_EQ(order, "ac");
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(semaphore.available(), 4U);
}

}  // namespace
}  // namespace tandem
