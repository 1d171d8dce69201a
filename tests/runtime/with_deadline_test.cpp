#include "runtime/with_deadline.hpp"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<int> after(Duration time, int value) {
  const StopToken stop = co_await current_stop_token();
  co_await sleep_for(time, stop);
  co_return value;
}
Task<int> stubborn(Duration time) {
  co_await sleep_for(time);
  co_return 1;
}
Task<int> clean_up_badly(Duration time) {
  try {
    (void)co_await after(time, 0);
  } catch (const Stopped&) {
    throw std::runtime_error("while stopping");
  }
  co_return 0;
}

class WithDeadline : public ::testing::Test {
 protected:
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  [[nodiscard]] Duration elapsed() const { return clock.now().time_since_epoch(); }
};

TEST_F(WithDeadline, GivesTheValueOfATaskThatEndsInTime) {
  EXPECT_EQ(loop.run([]() -> Task<int> {
    const int first = co_await with_deadline(2s, &after, 1s, 1);
    co_return first + co_await with_deadline(EventLoop::current().now() + 2s, &after, 1s, 2);
  }),
            3);
  EXPECT_EQ(elapsed(), 2s);  // and no timer is left to wait for
}

TEST_F(WithDeadline, StopsATaskThatIsLate) {
  auto late = []() -> Task<> { (void)co_await with_deadline(1s, &after, 1h, 1); };
  EXPECT_THAT([&] { loop.run(late); },
              ThrowsError<DeadlineExceeded>(
                  "[deadline] a part of task \"main\" did not end in time, and was stopped"));
  EXPECT_EQ(elapsed(), 1s);
}

TEST_F(WithDeadline, WaitsForATaskThatDoesNotListen) {
  EXPECT_THROW(loop.run([]() -> Task<> { (void)co_await with_deadline(1s, &stubborn, 10s); }),
               DeadlineExceeded);
  EXPECT_EQ(elapsed(), 10s);
}

TEST_F(WithDeadline, AFailureIsRethrownAsItIs) {
  EXPECT_THROW(loop.run([]() -> Task<> { (void)co_await with_deadline(1s, &clean_up_badly, 1h); }),
               std::runtime_error);
  EXPECT_THROW(loop.run([]() -> Task<> {
    co_await with_deadline(1s, []() -> Task<> {
      co_await yield();
      throw std::out_of_range("early");
    });
  }),
               std::out_of_range);
}

TEST(WithDeadlineTimer, ATaskThatEndsBeforeItIsAskedToStopKeepsItsValue) {
  ManualClock clock(ManualClock::Idle::kWait);
  EventLoop loop({.name = "test", .clock = &clock});
  Scope scope(loop);
  bool late = false;
  scope.spawn(
      "late",
      [](bool* out) -> Task<> {
        try {
          (void)co_await with_deadline(2s, &stubborn, 1s);
        } catch (const DeadlineExceeded&) {
          *out = true;
        }
      },
      &late);
  loop.run([]() -> Task<> { co_await yield(); });
  clock.advance(5s);  // both timers become due at once, the task's ahead of the deadline's
  loop.run(&Scope::join, &scope);
  EXPECT_FALSE(late);
}

TEST_F(WithDeadline, ADeadlineInThePastStopsAtTheFirstWait) {
  EXPECT_THROW(
      loop.run([]() -> Task<> { (void)co_await with_deadline(TimePoint(), &after, 1s, 1); }),
      DeadlineExceeded);
  EXPECT_EQ(elapsed(), 0s);
}

TEST_F(WithDeadline, AStopOfTheCallersScopeIsAStop) {
  bool stopped = false;
  loop.run(
      [](bool* out) -> Task<> {
        Scope scope(EventLoop::current());
        scope.spawn(
            "caller",
            [](bool* o) -> Task<> {
              try {
                (void)co_await with_deadline(1min, &after, 1h, 1);
              } catch (const Stopped&) {
                *o = true;
              }
            },
            out);
        co_await sleep_for(1s);
        scope.request_stop();
        co_await scope.join();
      },
      &stopped);
  EXPECT_TRUE(stopped);
}

}  // namespace
}  // namespace tandem
