// Misuse that no type refuses ends the process in one line, in release builds too. The checks of
// threads stand in wrong_thread_test.cpp, those of destructors in dies_in_use_test.cpp.
#include <thread>

#define ASIO_HAS_CO_AWAIT 1
#define ASIO_HAS_STD_COROUTINE 1
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/completion.hpp"
#include "runtime/detail/timer_heap.hpp"
#include "runtime/generator.hpp"
#include "runtime/io/asio_await.hpp"
#include "runtime/poller.hpp"
#include "runtime/sleep.hpp"
#include "runtime/spawned.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct MisuseDeathTest : testing::Test {
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

struct Note {};
struct Sleeper : Actor<Sleeper, Note> {
  Sleeper() : Actor("sleeper", 1) {}
  Task<> handle(Note) { co_await sleep_for(1h); }
};

TEST_F(MisuseDeathTest, AnActorIsStartedOnce) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        scope.start<Sleeper>().start(scope);
      },
      "sleeper: an actor is started once");
}

TEST_F(MisuseDeathTest, AThreadWithALoopDoesNotSleepForRoom) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        const Address<Note> full = scope.start<Sleeper>().address();
        loop.run(
            [](Address<Note> to) -> Task<> {
              (void)to.send_blocking(Note());
              (void)to.send_blocking(Note());
              co_return;
            },
            full);
      },
      "a thread that runs a loop does not block: co_await send\\(\\) there");
}

TEST_F(MisuseDeathTest, AnActorWhoseHandlerRunsDoesNotDie) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        loop.run(
            [](Scope* in) -> Task<> {
              Sleeper mine;
              mine.start(*in);
              (void)mine.address().try_send(Note());
              co_await sleep_for(1ms);
              throw Stopped();  // and `mine` dies
            },
            &scope);
      },
      "sleeper: an actor died while its handler ran: make it by scope.start<A>\\(\\)");
}

Task<> await_completion(Completion<int>* completion) { (void)co_await *completion; }

TEST_F(MisuseDeathTest, ACompletionIsAwaitedOnceAndOnItsLoop) {
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "home"});
        Scope scope(loop);
        Completion<int> never(loop);
        scope.spawn("first", &await_completion, &never);
        scope.spawn("second", &await_completion, &never);
        loop.run(&Scope::join, &scope);
      },
      "home: a completion is awaited once");
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "home"});
        loop.run([]() -> Task<> {
          Completion<int> arrived(EventLoop::current());
          arrived.set_value(1);
          co_await sleep_for(2ms);
          (void)co_await arrived;
          (void)co_await arrived;
        });
      },
      "home: a completion is awaited once");
  EXPECT_DEATH(
      {
        EventLoop home({.name = "home"});
        Completion<int> never(home);
        EventLoop loop;
        loop.run(&await_completion, &never);
      },
      "home: a completion is awaited on the loop that it was made for");
}

Task<int> five() { co_return 5; }

TEST_F(MisuseDeathTest, TheResultOfASpawnedTaskIsTakenOnce) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        Spawned<int> spawned = spawn_result(scope, "five", &five);
        loop.run(
            [](Spawned<int>* of) -> Task<> {
              (void)co_await of->result();
              (void)co_await of->result();
            },
            &spawned);
      },
      "five: the result of a spawned task is taken once");
}

Generator<int> slow_numbers() {
  co_await sleep_for(1h);
  co_yield 1;
}
Task<> take_one(Generator<int>* numbers) { (void)co_await numbers->next(); }

TEST_F(MisuseDeathTest, OneCoroutineAtATimeAwaitsAGenerator) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        Generator<int> numbers = slow_numbers();
        scope.spawn("first", &take_one, &numbers);
        scope.spawn("second", &take_one, &numbers);
        loop.run(&Scope::join, &scope);
      },
      "slow_numbers.*: one coroutine at a time awaits a generator");
}

// Its handler runs on another thread, which would have to stop it there.
TEST_F(MisuseDeathTest, ATimerOfAnotherIoContextTakesNoStopToken) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        asio::io_context other;
        asio::steady_timer timer(other, 1ms);
        std::thread thread([&] {
          std::this_thread::sleep_for(20ms);
          other.run();
        });
        loop.run([](asio::steady_timer* at,
                    Scope* in) -> Task<> { co_await at->async_wait(use_task(in->stop_token())); },
                 &timer, &scope);
        thread.join();
      },
      "an Asio object that is waited for with a stop token is on its loop's reactor");
}

struct NoPoller final : Poller {
  bool poll() noexcept override { return false; }
  bool poll_before_sleep() noexcept override { return false; }
};

TEST_F(MisuseDeathTest, APollerLeavesItsLoopBeforeItDies) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        NoPoller poller;
        loop.add_poller(poller);
      },
      "a poller leaves its loop before it dies");
}

// A parent knows its scope once it is started, so its constructor is too early.
struct Early : Actor<Early, Note> {
  Early() : Actor("early") { children.start<Sleeper>(); }
  Task<> handle(Note) { co_return; }
  Children children{*this};
};

TEST_F(MisuseDeathTest, AParentStartsChildrenOnceItIsStarted) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        scope.start<Early>();
      },
      "a parent starts children once it is started: in on_start\\(\\)");
}

// A restarted child gets the mailbox of the one that failed: the first actor that is made takes it.
struct WithAnother {
  Sleeper another;
};
struct Second : WithAnother, Actor<Second, Note> {
  Second() : Actor("second") {}
  Task<> handle(Note) {
    throw std::runtime_error("once");
    co_return;
  }
};

TEST_F(MisuseDeathTest, AChildsActorBaseIsMadeFirst) {
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        Children children(scope);
        (void)children.start<Second>().try_send(Note());
        loop.run(&Scope::join, &scope);
      },
      "a child's Actor base is made before everything else in it");
}

TEST_F(MisuseDeathTest, ATimerIsArmedOnceAtATime) {
  TimerHeap heap;
  TimerOp timer(nullptr);
  heap.arm(timer, TimePoint() + 1h);
  EXPECT_DEATH(heap.arm(timer, TimePoint() + 2h), "a timer is armed once at a time");
  heap.disarm(timer);
}

}  // namespace
}  // namespace tandem
