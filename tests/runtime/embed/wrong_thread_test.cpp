// A call from a thread that is not the loop's is refused in words, in release builds too, or the
// loop does it: never half of it.
#include <atomic>
#include <coroutine>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/channel.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Get {
  using Reply = int;
};
struct Keeper : Actor<Keeper, Get> {
  void handle(Get, ReplyTo<Get> reply) { replies.push_back(std::move(reply)); }
  std::vector<ReplyTo<Get>> replies;
};

// The objects on which the tests make their calls; the loop runs, and a task waits for each.
struct Home {
  EventLoop loop{{.name = "home"}};
  Scope scope{loop, "root"};
  Event event;
  Channel<int> channel{1};
  Keeper keeper;
};

Task<> prepare_and_run_on(Home* home, std::atomic<bool>* ready) {
  home->scope.spawn(
      "asker", [](Keeper::AddressType to) -> Task<> { (void)co_await to.ask(Get{}); },
      home->keeper.address());
  home->scope.spawn("event", [](Event* event) -> Task<> { co_await *event; }, &home->event);
  home->scope.spawn(
      "channel", [](Channel<int>* channel) -> Task<> { (void)co_await channel->receive(); },
      &home->channel);
  co_await sleep_for(2ms);
  *ready = true;
  co_await sleep_for(1h);
}

template <class Call>
void call_from_another_thread(Call call) {
  auto* home = new Home;  // never dies: the call ends the process
  home->keeper.start(home->scope);
  std::atomic<bool> ready{false};
  std::thread other([&] {
    while (!ready) {
      std::this_thread::yield();
    }
    call(*home);
  });
  home->loop.run(&prepare_and_run_on, home, &ready);
}

struct WrongThreadDeathTest : testing::Test {
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
constexpr const char* kRefused = "home: this belongs to the loop's thread; from others: post";

TEST_F(WrongThreadDeathTest, AReplyIsGivenOnTheActorsThread) {
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.keeper.replies[0].send(1); }),
               kRefused);
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.keeper.replies.clear(); }), kRefused);
}

TEST_F(WrongThreadDeathTest, AScopeIsUsedOnItsLoopsThread) {
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.scope.request_stop(); }), kRefused);
  EXPECT_DEATH(call_from_another_thread([](Home& home) { const Scope mine(home.loop); }), kRefused);
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.scope.fail("x", nullptr); }),
               kRefused);
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.scope.start<Keeper>(); }),
               "an actor is started on its loop's thread");
  EXPECT_DEATH(call_from_another_thread([](Home& home) {
                 Children children(home.scope);
                 children.start<Keeper>();
               }),
               kRefused);
}

TEST_F(WrongThreadDeathTest, ATaskThatWaitsIsWokenOnItsLoopsThread) {
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.event.set(); }), kRefused);
  EXPECT_DEATH(call_from_another_thread([](Home& home) { (void)home.channel.try_send(1); }),
               kRefused);
  EXPECT_DEATH(call_from_another_thread([](Home& home) { home.channel.close(); }), kRefused);
}

TEST_F(WrongThreadDeathTest, ALoopRunsOnOneThreadAtATime) {
  EXPECT_DEATH(call_from_another_thread([](Home& home) { (void)home.loop.run_ready(1); }),
               "home: a loop runs once at a time");
}

// A foreign awaitable, which resumes on a thread of its own.
struct Elsewhere {
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) const {
    std::thread([coroutine] { coroutine.resume(); }).detach();
  }
  void await_resume() const noexcept {}
};

TEST_F(WrongThreadDeathTest, ATaskThatGoesOnElsewhereIsNoticedAtTheLatestAtItsEnd) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        scope.spawn("strays", []() -> Task<> { co_await Elsewhere{}; });
        loop.run([]() -> Task<> { co_await sleep_for(1h); });
      },
      "strays: a task of this loop was resumed on another thread");
  EXPECT_DEATH(
      {
        EventLoop loop;
        loop.run([]() -> Task<> { co_await Elsewhere{}; });
      },
      "a task of this loop was resumed on another thread");
  EXPECT_DEATH(
      {
        EventLoop loop;
        loop.run([]() -> Task<> {
          co_await Elsewhere{};
          co_await sleep_for(1ms);
        });
      },
      "no event loop runs on this thread");
}

}  // namespace
}  // namespace tandem
