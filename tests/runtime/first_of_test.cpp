#include "runtime/first_of.hpp"

#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<int> after(Duration time, int value) {
  const StopToken stop = co_await current_stop_token();
  co_await sleep_for(time, stop);
  co_return value;
}
Task<std::string> text_after(Duration time) { co_return std::to_string(co_await after(time, 5)); }
Task<int> fail_after(Duration time, std::string text) {
  (void)co_await after(time, 0);
  throw std::runtime_error(text);
}
// Does not listen, and counts that it has ended.
Task<int> stubborn(Duration time, int* ended) {
  co_await sleep_for(time);
  ++*ended;
  co_return 99;
}

class FirstOf : public ::testing::Test {
 protected:
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  [[nodiscard]] Duration elapsed() const { return clock.now().time_since_epoch(); }
};

TEST_F(FirstOf, GivesTheFirstValueAndStopsTheOthers) {
  loop.run([]() -> Task<> {
    const First<int> first = co_await first_of(after(1h, 1), after(1s, 2), after(2h, 3));
    EXPECT_EQ(first.index, 1U);
    EXPECT_EQ(first.value, 2);
  });
  EXPECT_EQ(elapsed(), 1s);
}

TEST_F(FirstOf, AwaitsTheLosersAndDropsWhatTheyGive) {
  int ended = 0;
  loop.run(
      [](int* e) -> Task<> {
        const auto first = co_await first_of(stubborn(10s, e), after(1s, 2));
        EXPECT_EQ(*e, 1);
        EXPECT_EQ(first.index, 1U);
        EXPECT_EQ(first.value, 2);
      },
      &ended);
  EXPECT_EQ(elapsed(), 10s);
}

TEST_F(FirstOf, AFailureLosesAgainstALaterSuccess) {
  loop.run([]() -> Task<> {
    const auto first = co_await first_of(fail_after(1s, "broken"), after(2s, 2));
    EXPECT_EQ(first.index, 1U);
    EXPECT_EQ(first.value, 2);
  });
  EXPECT_EQ(elapsed(), 2s);
}

TEST_F(FirstOf, IfAllFailTheFirstFailureIsRethrown) {
  auto both = []() -> Task<> {
    (void)co_await first_of(fail_after(2s, "second"), fail_after(1s, "first"));
  };
  EXPECT_THAT([&] { loop.run(both); }, ::testing::ThrowsMessage<std::runtime_error>("first"));
  EXPECT_EQ(elapsed(), 2s);
}

TEST_F(FirstOf, ValuesOfSeveralTypesComeAsAVariant) {
  loop.run([]() -> Task<> {
    const auto first = co_await first_of(after(2s, 1), text_after(1s),
                                         []() -> Task<> { co_await sleep_for(3s); }());
    EXPECT_EQ(first.index, 1U);
    EXPECT_EQ(first.value.index(), 1U);
    EXPECT_EQ(std::get<1>(first.value), "5");
  });
  EXPECT_EQ(elapsed(), 3s);
}

TEST_F(FirstOf, OfTwoThatEndTogetherTheFirstWins) {
  loop.run([]() -> Task<> {
    const auto first = co_await first_of(after(1s, 1), after(1s, 2));
    EXPECT_EQ(first.index, 0U);
  });
}

TEST_F(FirstOf, AStopOfTheCallersScopeStopsAll) {
  bool stopped = false;
  loop.run(
      [](bool* out) -> Task<> {
        Scope scope(EventLoop::current());
        scope.spawn(
            "caller",
            [](bool* o) -> Task<> {
              try {
                (void)co_await first_of(after(1h, 1), fail_after(1ms, "early"));
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
