#include "runtime/task.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "runtime/detail/await_chain.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

// ---- the rules the types enforce
static_assert(!std::is_move_constructible_v<Task<int>> && !std::is_copy_constructible_v<Task<int>>);
static_assert(!std::is_move_assignable_v<Task<>>);

Task<> nothing() { co_return; }
struct HasMember {
  Task<> member() { co_return; }
};
constexpr auto kPlainLambda = [](int) -> Task<> { co_return; };
static_assert(TaskFactory<decltype(&nothing)>);
static_assert(TaskFactory<decltype(&HasMember::member), HasMember*>);
static_assert(TaskFactory<decltype(kPlainLambda), int>);
static_assert(!TaskFactory<int (*)()>);

TEST(TaskRules, LambdaWithCapturesIsNoFactory) {
  int captured = 1;
  auto by_value = [captured]() -> Task<int> { co_return captured; };
  auto by_reference = [&captured]() -> Task<int> { co_return captured; };
  static_assert(!TaskFactory<decltype(by_value)>);
  static_assert(!TaskFactory<decltype(by_reference)>);
  EXPECT_EQ(captured, 1);
}

// ---- values
Task<int> twice(int x) { co_return 2 * x; }
Task<std::unique_ptr<int>> boxed(int x) { co_return std::make_unique<int>(x); }
Task<int&> refer(int* x) { co_return *x; }
Task<int> throwing() {
  throw std::runtime_error("from inside");
  co_return 0;
}

TEST(Task, GivesItsValue) {
  EventLoop loop;
  EXPECT_EQ(loop.run(&twice, 21), 42);
  EXPECT_EQ(*loop.run(&boxed, 7), 7);
  int here = 5;
  int& there = loop.run(&refer, &here);
  EXPECT_EQ(&there, &here);
}

TEST(Task, ThrowsToWhoAwaits) {
  EventLoop loop;
  EXPECT_THROW(loop.run(&throwing), std::runtime_error);
  loop.run([]() -> Task<> {
    EXPECT_THAT(co_await outcome_of(&throwing),
                ::testing::ThrowsMessage<std::runtime_error>("from inside"));
  });
}

TEST(Task, IsLazyAndMayBeDroppedUnstarted) {
  EventLoop loop;
  static int started = 0;
  started = 0;
  loop.run([]() -> Task<> {
    auto start = []() -> Task<> {
      ++started;
      co_return;
    };
    {
      auto never = start();
      (void)never;
    }
    EXPECT_EQ(started, 0);
    auto later = start();
    EXPECT_EQ(started, 0);
    co_await std::move(later);
    EXPECT_EQ(started, 1);
  });
}

TEST(TaskDeathTest, IsAwaitedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        loop.run([]() -> Task<> {
          auto task = nothing();
          co_await std::move(task);
          co_await std::move(task);
        });
      },
      "awaited exactly once");
}

// ---- the stack
std::uintptr_t stack_here() { return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)); }

struct StackRange {
  std::uintptr_t lowest = UINTPTR_MAX;
  std::uintptr_t highest = 0;
  void note() {
    lowest = std::min(lowest, stack_here());
    highest = std::max(highest, stack_here());
  }
  std::uintptr_t bytes() const { return highest - lowest; }
};

Task<int> note_stack(StackRange* range, int x) {
  range->note();
  co_return x + 1;
}

TEST(TaskStack, AMillionSynchronousAwaitsInALoopUseNone) {
  EventLoop loop;
  StackRange range;
  const int count = loop.run(
      [](StackRange* r) -> Task<int> {
        int value = 0;
        for (int i = 0; i < 1'000'000; ++i) {
          value = co_await note_stack(r, value);
        }
        co_return value;
      },
      &range);
  EXPECT_EQ(count, 1'000'000);
  EXPECT_LT(range.bytes(), 4096U);
}

// Each level awaits the next: as deep as this the chain must not live on the stack, neither going
// down nor coming back.
Task<int> descend(int left, StackRange* range) {
  if (left % 1024 == 0) {
    range->note();
  }
  if (left == 0) {
    co_return 0;
  }
  const int below = co_await descend(left - 1, range);
  if (left % 1024 == 0) {
    range->note();
  }
  co_return below + 1;
}

TEST(TaskStack, AChainOfAHundredThousandTasksUsesNone) {
  EventLoop loop;
  StackRange range;
  EXPECT_EQ(loop.run(&descend, 100'000, &range), 100'000);
  EXPECT_LT(range.bytes(), 4096U);
}

TEST(TaskStack, AMillionSetEventsInARowUseNone) {
  EventLoop loop;
  StackRange range;
  loop.run(
      [](StackRange* r) -> Task<> {
        Event set(true);
        for (int i = 0; i < 1'000'000; ++i) {
          co_await set;
          r->note();
        }
      },
      &range);
  EXPECT_LT(range.bytes(), 4096U);
}

// ---- frames
struct Pair {  // an aggregate with a member that is not trivial
  std::string text;
  std::unique_ptr<int> number;
};
Task<std::string> take_aggregate(Pair pair) {
  co_await yield();
  co_return pair.text + std::to_string(*pair.number);
}

TEST(TaskFrame, AggregateParametersLiveInTheFrame) {
  EventLoop loop;
  const std::string text = loop.run([]() -> Task<std::string> {
    co_return co_await take_aggregate({.text = "a text that is too long for small strings: ",
                                       .number = std::make_unique<int>(7)});
  });
  EXPECT_EQ(text, "a text that is too long for small strings: 7");
}

TEST(TaskFrame, EveryFrameIsFreedOnTheThreadThatRunsTheLoop) {
  struct Guard {
    std::thread::id* where;
    ~Guard() { *where = std::this_thread::get_id(); }
  };
  EventLoop loop;
  std::thread::id freed;
  std::thread::id ran;
  std::thread([&] {
    ran = std::this_thread::get_id();
    loop.run(
        [](std::thread::id* out) -> Task<> {
          Guard guard{out};
          co_await sleep_for(std::chrono::microseconds(10));
        },
        &freed);
  }).join();
  EXPECT_TRUE(freed == ran);
  EXPECT_TRUE(freed != std::this_thread::get_id());
}

TEST(TaskFrame, ALoopMayRunOnAnotherThreadNextTime) {
  EventLoop loop;
  Scope scope(loop);
  Event go;
  int done = 0;
  auto waits = [](Event* event, int* count) -> Task<> {
    co_await *event;
    ++*count;
  };
  for (int i = 0; i < 100; ++i) {
    scope.spawn("waits", waits, &go, &done);
  }
  loop.run([]() -> Task<> { co_await yield(); });
  std::thread([&] {
    loop.run(
        [](Event* event, Scope* all) -> Task<> {
          event->set();
          co_await all->join();
        },
        &go, &scope);
  }).join();
  EXPECT_EQ(done, 100);
}

// ---- names
Task<> leaf(Event* event) { co_await *event; }
Task<> middle(Event* event) { co_await leaf(event).named("the leaf"); }

TEST(AwaitChain, NamesEveryLevelDownToWhatItWaitsFor) {
  EventLoop loop;
  Scope scope(loop, "chain");
  Event event;
  scope.spawn("worker", &middle, &event);
  loop.run([]() -> Task<> { co_await yield(); });
  const std::string text = scope.describe();
  EXPECT_NE(text.find("scope \"chain\": 1 running"), std::string::npos) << text;
  EXPECT_NE(text.find("worker ("), std::string::npos) << text;
  EXPECT_NE(text.find("middle"), std::string::npos) << text;
  EXPECT_NE(text.find("the leaf (runtime/task_test.cpp:"), std::string::npos) << text;
  EXPECT_NE(text.find("[event]"), std::string::npos) << text;
  event.set();
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(scope.describe(), "scope \"chain\": 0 running\n");
}

}  // namespace
}  // namespace tandem
