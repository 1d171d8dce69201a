// A check refuses in words, in release builds too, an object that dies while something waits for it
// or that is completed twice: each promise of docs/runtime.md and of the headers that a check
// keeps.
#include <optional>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/channel.hpp"
#include "runtime/completion.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/semaphore.hpp"
#include "runtime/sleep.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// Runs `task` until it waits for `what`, which dies then.
template <class What, class Task>
void die_in_use(What* what, Task task) {
  EventLoop loop({.name = "home"});
  auto* scope = new Scope(loop);  // never dies: the check that is tested comes first
  scope->spawn("waits", task, what);
  loop.run([]() -> tandem::Task<> { co_await yield(); });
  delete what;
}

struct DiesInUse : testing::Test {
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using DiesInUseDeathTest = DiesInUse;

TEST_F(DiesInUseDeathTest, AChannelWithOneThatWaits) {
  EXPECT_DEATH(die_in_use(new Channel<int>(1),
                          [](Channel<int>* c) -> Task<> { (void)co_await c->receive(); }),
               "a channel died while a coroutine waits for it");
  EXPECT_DEATH(die_in_use(new Channel<int>(1),
                          [](Channel<int>* c) -> Task<> { (void)co_await c->receive(1h); }),
               "a channel died while a coroutine waits for it");
  EXPECT_DEATH(
      die_in_use(new Channel<int>(0), [](Channel<int>* c) -> Task<> { (void)co_await c->send(1); }),
      "a channel died while a coroutine waits for it");
}

TEST_F(DiesInUseDeathTest, AnEventOrALatchWithOneThatWaits) {
  EXPECT_DEATH(die_in_use(new Event, [](Event* e) -> Task<> { co_await *e; }),
               "an event died while a coroutine waits for it");
  EXPECT_DEATH(die_in_use(new Latch(1), [](Latch* l) -> Task<> { co_await *l; }),
               "an event died while a coroutine waits for it");
  EXPECT_DEATH(Latch(1).count_down(2), "a latch was counted below zero");
}

TEST_F(DiesInUseDeathTest, ASemaphoreWithPermitsOrOneThatWaits) {
  EXPECT_DEATH(die_in_use(new Semaphore(2),
                          [](Semaphore* s) -> Task<> {
                            const auto held = co_await s->acquire(2);
                            (void)co_await s->acquire();
                          }),
               "a semaphore died while a coroutine waits for it");
  EXPECT_DEATH(
      {
        auto* semaphore = new Semaphore(2);
        const auto permit = semaphore->try_acquire();
        delete semaphore;
      },
      "a semaphore died before its permits");
}

TEST_F(DiesInUseDeathTest, AStopSourceWithOneThatWaits) {
  EXPECT_DEATH(die_in_use(new StopSource,
                          [](StopSource* s) -> Task<> { co_await sleep_for(1h, s->token()); }),
               "a stop source died while a coroutine waits on its token");
}

TEST_F(DiesInUseDeathTest, ACompletionThatIsAwaitedOrOnItsWay) {
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "home"});
        auto* scope = new Scope(loop);
        Completion<int>* done = nullptr;
        scope->spawn(
            "waits",
            [](Completion<int>** out) -> Task<> {
              *out = new Completion<int>(EventLoop::current());
              (void)co_await **out;
            },
            &done);
        loop.run([]() -> Task<> { co_await yield(); });
        delete done;
      },
      "home: a completion on this loop died before it was awaited");
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "home"});
        Completion<int> done(loop);
        done.set_value(1);  // is on its way through the loop
      },
      "home: a completion on this loop died before it was awaited");
}

TEST_F(DiesInUseDeathTest, AScopeOrChildrenThatStillRun) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop, "leaky");
        scope.spawn("sleeps", []() -> Task<> { co_await sleep_for(1h); });
        loop.run([]() -> Task<> { co_await yield(); });
      },
      "leaky: a scope died before its tasks");
  struct Idle : Actor<Idle, int> {
    void handle(int) {}
  };
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        Children children(scope);
        children.start<Idle>();
      },
      "children died before they had ended");
}

// Nothing is left of it, and no coroutine will come for it.
TEST_F(DiesInUse, ACompletionThatNobodyWantedMayDie) {
  EventLoop loop;
  {
    const Completion<int> never(loop);
  }
  {
    Completion<int> done(loop);
    std::thread([&] { done.set_value(1); }).join();
    loop.run([]() -> Task<> { co_await yield(); });
    EXPECT_TRUE(done.arrived());
  }
  testing::internal::CaptureStderr();
  {
    Completion<int> failed(loop);
    failed.set_error(std::make_exception_ptr(std::runtime_error("the disk is gone")));
    loop.run([]() -> Task<> { co_await yield(); });
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("the disk is gone"), std::string::npos);
}

}  // namespace
}  // namespace tandem
