#include "runtime/when_all.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

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
Task<> wait(Duration time) { (void)co_await after(time, 0); }
Task<int> fail_after(Duration time, std::string text) {
  co_await wait(time);
  throw std::runtime_error(text);
}
// Does not listen, and says when it has ended.
Task<int> stubborn(Duration time, bool* ended) {
  co_await sleep_for(time);
  *ended = true;
  co_return 0;
}

class WhenAll : public ::testing::Test {
 protected:
  template <class Factory, class... Args>
  auto run(Factory factory, Args... args) {
    return loop.run(factory, args...);
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  [[nodiscard]] Duration elapsed() const { return clock.now().time_since_epoch(); }
};

TEST_F(WhenAll, GivesTheValuesOfAllAfterTheSlowest) {
  run([]() -> Task<> {
    auto [a, b, c, d] = co_await when_all(
        after(3s, 1), wait(1s), after(2s, 2),
        []() -> Task<std::unique_ptr<int>> { co_return std::make_unique<int>(3); }());
    static_assert(std::is_same_v<decltype(b), std::monostate>);
    EXPECT_EQ(a, 1);
    EXPECT_EQ(c, 2);
    EXPECT_EQ(*d, 3);
  });
  EXPECT_EQ(elapsed(), 3s);
}

TEST_F(WhenAll, TheFirstFailureStopsTheOthersAndIsRethrownWhenAllHaveEnded) {
  bool ended = false;
  const std::string text = run(
      [](bool* e) -> Task<std::string> {
        try {
          (void)co_await when_all(after(1h, 1), fail_after(1s, "first"), fail_after(1h, "second"),
                                  stubborn(5s, e));
        } catch (const std::runtime_error& error) {
          EXPECT_TRUE(*e);
          co_return error.what();
        }
        co_return "";
      },
      &ended);
  EXPECT_EQ(text, "first");
  EXPECT_EQ(elapsed(), 5s);
}

TEST_F(WhenAll, AStopOfTheCallersScopeStopsAll) {
  bool stopped = false;
  run(
      [](bool* out) -> Task<> {
        Scope scope(EventLoop::current());
        scope.spawn(
            "caller",
            [](bool* o) -> Task<> {
              try {
                (void)co_await when_all(after(1h, 1), after(2h, 2));
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
  EXPECT_EQ(elapsed(), 1s);
}

TEST_F(WhenAll, MakesATaskForEachOfARange) {
  run([]() -> Task<> {
    const std::vector<int> seconds{3, 1, 2};
    const std::vector<int> doubled = co_await when_all(
        seconds, [](int s) -> Task<int> { co_return 2 * co_await after(s * 1s, s); });
    EXPECT_EQ(doubled, (std::vector<int>{6, 2, 4}));
    EXPECT_TRUE(
        (co_await when_all(std::vector<int>(), [](int s) -> Task<int> { co_return s; })).empty());
    std::vector<std::unique_ptr<int>> boxes;
    boxes.push_back(std::make_unique<int>(7));
    const auto units = co_await when_all(std::move(boxes), [](std::unique_ptr<int> box) -> Task<> {
      EXPECT_EQ(*box, 7);
      co_return;
    });
    EXPECT_EQ(units.size(), 1U);
  });
  EXPECT_EQ(elapsed(), 3s);
}

TEST_F(WhenAll, AFailureInARangeStopsTheRest) {
  EXPECT_THROW(run([]() -> Task<> {
                 (void)co_await when_all(std::vector<int>{1, 100, 1000}, [](int s) -> Task<int> {
                   return s == 1 ? fail_after(1s, "one") : after(s * 1s, s);
                 });
               }),
               std::runtime_error);
  EXPECT_EQ(elapsed(), 1s);
}

TEST_F(WhenAll, Nests) {
  EXPECT_EQ(run([]() -> Task<int> {
              const auto pair = []() -> Task<int> {
                auto [a, b] = co_await when_all(after(1s, 1), after(2s, 2));
                co_return a + b;
              };
              auto [x, y] = co_await when_all(pair(), pair());
              co_return x + y;
            }),
            6);
  EXPECT_EQ(elapsed(), 2s);
}

}  // namespace
}  // namespace tandem
