// Limits and pauses of one child.
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Fail {};
struct Frail : Actor<Frail, Fail> {
  explicit Frail(std::vector<TimePoint>* out) : made(out) {
    made->push_back(EventLoop::current().now());
  }
  void handle(Fail) { throw std::runtime_error("frail"); }
  std::vector<TimePoint>* made;
};

struct ChildOptionsTest : testing::Test {
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope scope{loop, "root"};
  Children children{scope, {.limit = {.most = 1, .within = 1h}}};
  std::vector<TimePoint> made;

  Frail::AddressType start(ChildOptions options) {
    return loop.run([](Children* of, ChildOptions with, std::vector<TimePoint>* out)
                        -> Task<Frail::AddressType> { co_return of->start_with<Frail>(with, out); },
                    &children, options, &made);
  }
  void fail(const Frail::AddressType& child, Duration then) {
    loop.run(
        [](Frail::AddressType to, Duration time) -> Task<> {
          co_await to.send(Fail{});
          co_await sleep_for(time);
        },
        child, then);
  }
};

TEST_F(ChildOptionsTest, ThePauseGrowsAndEndsWhenTheChildHasRunLongEnough) {
  const auto child =
      start({.limit = {.most = 10, .within = 60s}, .backoff = 1s, .backoff_most = 3s});
  for (int i = 0; i < 4; ++i) {
    fail(child, 10s);  // made anew after 1, 2, 3, 3 s
  }
  ASSERT_EQ(made.size(), 5U);
  const std::vector<Duration> pauses{1s, 2s, 3s, 3s};
  for (std::size_t i = 0; i < pauses.size(); ++i) {
    EXPECT_EQ(made[i + 1] - TimePoint(i * 10s), pauses[i]) << i;
  }
  loop.run([]() -> Task<> { co_await sleep_for(100s); });
  const TimePoint before = clock.now();
  fail(child, 10s);
  EXPECT_EQ(made.back() - before, 1s);
  scope.request_stop();
  loop.run(&Scope::join, &scope);
}

TEST_F(ChildOptionsTest, ALimitOfItsOwnCountsItsRestartsAlone) {
  const auto often = start({.limit = {.most = 5, .within = 1h}});
  const auto rarely = start({.limit = {.most = 0, .within = 1h}});
  for (int i = 0; i < 5; ++i) {
    fail(often, 1s);
  }
  EXPECT_EQ(children.restarts(), 5U);  // though all others have one
  fail(rarely, 1s);
  EXPECT_THROW(loop.run(&Scope::join, &scope), Error);
}

TEST_F(ChildOptionsTest, AStopDuringThePauseRestartsNothing) {
  const auto child = start({.backoff = 1h, .backoff_most = 1h});
  fail(child, 1s);
  scope.request_stop();
  EXPECT_THROW(loop.run(&Scope::join, &scope), std::runtime_error);  // no error is lost
  EXPECT_EQ(made.size(), 1U);
  EXPECT_LT(clock.now(), TimePoint(1min));
}

}  // namespace
}  // namespace tandem
