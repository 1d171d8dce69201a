#include "runtime/generator.hpp"

#include <memory>
#include <stdexcept>
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

/// Says when it dies.
struct Mark {
  explicit Mark(bool* died_in) : died(died_in) {}
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() { *died = true; }
  bool* died;
};

Generator<int> counts(int to, bool* ended) {
  const Mark mark(ended);
  const StopToken stop = co_await current_stop_token();
  for (int i = 0; i < to; ++i) {
    co_await sleep_for(1s, stop);
    co_yield i;
  }
}

Generator<std::unique_ptr<int>> fails_at(int number) {
  for (int i = 0;; ++i) {
    if (i == number) {
      throw std::runtime_error("out of numbers");
    }
    co_yield std::make_unique<int>(i);
  }
}

TEST(Generator, MakesOneValueForEachNext) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  bool ended = false;
  loop.run(
      [](bool* done, ManualClock* time) -> Task<> {
        Generator<int> generator = counts(3, done);
        EXPECT_EQ(time->now(), TimePoint(0s));  // nothing has run
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(co_await generator.next(), i);
          EXPECT_EQ(time->now(), TimePoint(std::chrono::seconds(i + 1)));
        }
        EXPECT_FALSE(*done);
        EXPECT_EQ(co_await generator.next(), std::nullopt);
        EXPECT_TRUE(*done);
        EXPECT_EQ(co_await generator.next(), std::nullopt);
      },
      &ended, &clock);
}

TEST(Generator, ItsLocalsEndWithItWhereItYielded) {
  EventLoop loop;
  bool ended = false;
  loop.run(
      [](bool* done) -> Task<> {
        {
          Generator<int> never_run = counts(1, done);
          EXPECT_FALSE(*done);
        }
        EXPECT_FALSE(*done);  // its body did not begin
        Generator<std::unique_ptr<int>> numbers = fails_at(100);
        EXPECT_EQ(**co_await numbers.next(), 0);
      },
      &ended);
  ManualClock clock;
  EventLoop timed({.name = "timed", .clock = &clock});
  timed.run(
      [](bool* done) -> Task<> {
        Generator<int> left_early = counts(10, done);
        (void)co_await left_early.next();
        EXPECT_FALSE(*done);
      },
      &ended);
  EXPECT_TRUE(ended);
}

TEST(Generator, RethrowsOnceAndHasEnded) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Generator<std::unique_ptr<int>> numbers = fails_at(2);
    EXPECT_EQ(**co_await numbers.next(), 0);
    EXPECT_EQ(**co_await numbers.next(), 1);
    std::string what;
    try {
      (void)co_await numbers.next();
    } catch (const std::runtime_error& error) {
      what = error.what();
    }
    EXPECT_EQ(what, "out of numbers");
    EXPECT_EQ(co_await numbers.next(), std::nullopt);
  });
}

TEST(Generator, AStopReachesItThroughTheTaskThatAwaits) {
  EventLoop loop;
  Scope scope(loop, "scope");
  bool ended = false;
  scope.spawn(
      "consumer",
      [](bool* done) -> Task<> {
        Generator<int> hours = counts(3600, done);
        while (co_await hours.next()) {
        }
      },
      &ended);
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  EXPECT_NE(scope.describe().find("sleep"), std::string::npos) << scope.describe();
  const bool clean = loop.run(
      [](Scope* root) -> Task<bool> {
        Shutdown shutdown(*root, {.handle = 1s, .drain = 5s});
        co_return (co_await shutdown.run()).clean;
      },
      &scope);
  EXPECT_TRUE(clean);
  EXPECT_TRUE(ended);
}

TEST(Generator, ManyValuesUseNoStack) {
  EventLoop loop;
  const long sum = loop.run([]() -> Task<long> {
    long total = 0;
    Generator<std::unique_ptr<int>> numbers = fails_at(1'000'000);
    for (int i = 0; i < 200'000; ++i) {
      total += **co_await numbers.next();
    }
    co_return total;
  });
  EXPECT_EQ(sum, 199'999L * 100'000);
}

}  // namespace
}  // namespace tandem
