#include "runtime/event_loop.hpp"

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <asio/post.hpp>
#include <gtest/gtest.h>

#include "runtime/completion.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(EventLoop, RunsAgainAndAgain) {
  EventLoop loop;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(loop.run(
                  [](int x) -> Task<int> {
                    co_await yield();
                    co_return x;
                  },
                  i),
              i);
  }
}

TEST(EventLoop, WhatCompletesBetweenRunsQueuesUp) {
  EventLoop loop;
  Scope scope(loop);
  Completion<int> completion(loop);
  int got = 0;
  scope.spawn(
      "waits", [](Completion<int>* c, int* out) -> Task<> { *out = co_await *c; }, &completion,
      &got);
  loop.run([]() -> Task<> { co_await yield(); });
  std::thread([&] { completion.set_value(9); }).join();
  EXPECT_EQ(got, 0);
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(got, 9);
}

TEST(EventLoop, ResumesInTheOrderOfPosting) {
  EventLoop loop;
  Scope scope(loop);
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) {
    scope.spawn(
        "one",
        [](int id, std::vector<int>* out) -> Task<> {
          out->push_back(id);
          co_await yield();
          out->push_back(id + 10);
        },
        i, &order);
  }
  loop.run(&Scope::join, &scope);
  std::vector<int> expected(20);
  for (int i = 0; i < 20; ++i) {
    expected[static_cast<std::size_t>(i)] = i;
  }
  EXPECT_EQ(order, expected);
}

TEST(EventLoop, NestsInsideAnother) {
  EventLoop outer;
  const int value = outer.run([]() -> Task<int> {
    EventLoop* before = &EventLoop::current();
    EventLoop inner;
    const int got = inner.run([]() -> Task<int> {
      co_await sleep_for(1ms);
      co_return 3;
    });
    EXPECT_EQ(&EventLoop::current(), before);
    co_await yield();
    co_return got;
  });
  EXPECT_EQ(value, 3);
}

// ---- timers
TEST(Timers, FireInTheOrderOfTheirDeadlines) {
  ManualClock clock;
  EventLoop loop({.clock = &clock});
  Scope scope(loop);
  std::vector<int> order;
  std::mt19937 random(1);
  std::vector<int> delays(200);
  for (int& delay : delays) {
    delay = static_cast<int>(random() % 50);
    scope.spawn(
        "sleeper",
        [](int ms, std::vector<int>* out) -> Task<> {
          co_await sleep_for(std::chrono::milliseconds(ms));
          out->push_back(ms);
        },
        delay, &order);
  }
  loop.run(&Scope::join, &scope);
  std::sort(delays.begin(), delays.end());
  EXPECT_EQ(order, delays);
}

TEST(Timers, VirtualTimeTakesNoTime) {
  ManualClock clock;
  EventLoop loop({.clock = &clock});
  const auto start = std::chrono::steady_clock::now();
  loop.run([]() -> Task<> { co_await sleep_for(24h); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  EXPECT_EQ(clock.now().time_since_epoch(), 24h);
}

TEST(Timers, AMovedClockFiresWhatIsDue) {
  ManualClock clock(ManualClock::Idle::kWait);
  EventLoop loop({.clock = &clock});
  Scope scope(loop);
  bool fired = false;
  scope.spawn(
      "sleeper",
      [](bool* out) -> Task<> {
        co_await sleep_for(10s);
        *out = true;
      },
      &fired);
  loop.run([]() -> Task<> { co_await yield(); });
  clock.advance(9s);
  loop.run([]() -> Task<> { co_await yield(); });
  EXPECT_FALSE(fired);
  clock.advance(1s);
  loop.run(&Scope::join, &scope);
  EXPECT_TRUE(fired);
}

// Three timers are due at once; the first takes the second back, which waits behind it, and dies.
TEST(Timers, OneThatIsDueIsTakenBack) {
  struct Timer : TimerOp {
    explicit Timer(std::vector<int>& out, int number_in, std::unique_ptr<Timer>* victim_in)
        : TimerOp([](Op& op) noexcept {
            auto& self = static_cast<Timer&>(op);
            self.ran.push_back(self.number);
            if (self.victim != nullptr) {
              EventLoop::current().take_back(**self.victim);
              self.victim->reset();
            }
          }),
          ran(out),
          number(number_in),
          victim(victim_in) {}
    std::vector<int>& ran;
    int number;
    std::unique_ptr<Timer>* victim;
  };
  ManualClock clock;
  EventLoop loop({.clock = &clock});
  std::vector<int> ran;
  auto second = std::make_unique<Timer>(ran, 2, nullptr);
  Timer first(ran, 1, &second);
  Timer third(ran, 3, nullptr);
  for (Timer* timer : {&first, second.get(), &third}) {
    loop.arm(*timer, clock.now() + 1s);
  }
  loop.run([]() -> Task<> { co_await sleep_for(2s); });
  EXPECT_EQ(ran, (std::vector<int>{1, 3}));
  Timer armed(ran, 4, nullptr);
  loop.arm(armed, clock.now() + 1s);
  loop.take_back(armed);
  loop.run([]() -> Task<> { co_await sleep_for(2s); });
  EXPECT_EQ(ran.size(), 2U);
}

TEST(Timers, SleepsLastAsLongAsTheySay) {
  EventLoop loop;
  const auto start = std::chrono::steady_clock::now();
  loop.run([]() -> Task<> {
    co_await sleep_for(3ms);
    co_await sleep_for(300us);
    co_await sleep_for(0s);
    co_await sleep_until(EventLoop::current().now() - 1s);
  });
  EXPECT_GE(std::chrono::steady_clock::now() - start, 3300us);
}

TEST(Timers, AnEarlierTimerThanTheOneTheReactorWaitsFor) {
  EventLoop loop;
  Scope scope(loop);
  scope.spawn(
      "late", [](StopToken stop) -> Task<> { co_await sleep_for(1h, stop); }, scope.stop_token());
  loop.run(
      [](Scope* all) -> Task<> {
        co_await sleep_for(2ms);
        co_await sleep_for(1ms);
        all->request_stop();
        co_await all->join();
      },
      &scope);
}

// ---- fairness
TEST(Fairness, ACoroutineThatNeverWaitsLetsOthersRun) {
  EventLoop loop;
  Scope scope(loop);
  bool stop = false;
  std::int64_t turns = 0;
  scope.spawn(
      "greedy",
      [](bool* end, std::int64_t* count) -> Task<> {
        Event set(true);
        while (!*end) {
          co_await set;  // never has to wait
          ++*count;
        }
      },
      &stop, &turns);
  scope.spawn(
      "modest",
      [](bool* end) -> Task<> {
        co_await yield();
        co_await yield();
        *end = true;
      },
      &stop);
  loop.run(&Scope::join, &scope);
  EXPECT_GT(turns, 0);
}

TEST(Fairness, AFullRunQueueLetsTimersInboxAndReactorRun) {
  EventLoop loop;
  Scope scope(loop);
  std::atomic<int> seen{0};
  auto spin = [](std::atomic<int>* count) -> Task<> {
    while (count->load() < 3) {
      co_await yield();
    }
  };
  scope.spawn("one", spin, &seen);
  scope.spawn("two", spin, &seen);
  scope.spawn(
      "timer",
      [](std::atomic<int>* count) -> Task<> {
        co_await sleep_for(1ms);
        ++*count;
      },
      &seen);
  asio::post(loop.reactor(), [&] { ++seen; });
  Completion<void> completion(loop);
  scope.spawn(
      "inbox",
      [](std::atomic<int>* count, Completion<void>* c) -> Task<> {
        co_await *c;
        ++*count;
      },
      &seen, &completion);
  std::thread poster([&] { completion.set_value(); });
  loop.run(&Scope::join, &scope);
  poster.join();
  EXPECT_EQ(seen, 3);
}

TEST(StallWatch, NamesTheTaskThatHeldTheLoop) {
  EventLoop loop({.stall_limit = 5ms});
  Scope scope(loop);
  scope.spawn("hog", []() -> Task<> {
    co_await yield();
    std::this_thread::sleep_for(20ms);
  });
  loop.run(&Scope::join, &scope);
  loop.run([]() -> Task<> { co_await yield(); });
  EXPECT_EQ(loop.stalls(), 1U);
  EXPECT_NE(loop.last_stall().find("hog"), std::string::npos) << loop.last_stall();
  EXPECT_NE(loop.last_stall().find("event_loop_test.cpp"), std::string::npos) << loop.last_stall();
}

// Through the inbox, posted by the loop's own thread: each round of the loop is one operation, and
// none of them is idle.
struct RemoteYield {
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    resume.set(coroutine);
    EventLoop::current().post_from_any_thread(resume);
  }
  void await_resume() const noexcept {}
  detail::ResumeOp resume;
};

TEST(EventLoop, TimersAndReactorGetTheirTurnBetweenMessagesOfOtherThreads) {
  EventLoop loop;
  bool posted = false;
  asio::post(loop.reactor(), [&posted] { posted = true; });
  loop.run(
      [](const bool* reactor_ran) -> Task<> {
        bool slept = false;
        Scope scope(EventLoop::current());
        scope.spawn(
            "sleeper",
            [](bool* flag) -> Task<> {
              co_await sleep_for(100us);
              *flag = true;
            },
            &slept);
        while (!slept || !*reactor_ran) {
          co_await RemoteYield{};
        }
        co_await scope.join();
      },
      &posted);
  EXPECT_TRUE(posted);
}

TEST(EventLoop, AStallAmongMessagesOfOtherThreadsIsBlamedOnItsTask) {
  EventLoop loop({.stall_limit = 5ms});
  Scope scope(loop);
  scope.spawn("hog", []() -> Task<> {
    co_await RemoteYield{};
    std::this_thread::sleep_for(20ms);
    co_await RemoteYield{};
  });
  scope.spawn("chatty", []() -> Task<> {
    for (int i = 0; i < 1000; ++i) {
      co_await RemoteYield{};
    }
  });
  loop.run(&Scope::join, &scope);
  EXPECT_GE(loop.stalls(), 1U);
  EXPECT_NE(loop.last_stall().find("hog"), std::string::npos) << loop.last_stall();
}

// ---- other threads
TEST(CrossThread, EveryPostWakesTheLoop) {
  // One post at a time into a loop that mostly sleeps: a single lost wake-up would hang this.
  for (const Spin spin : {Spin::kNever, Spin::kAuto, Spin::kAlways}) {
    EventLoop loop({.spin = spin});
    std::atomic<Completion<int>*> mailbox{nullptr};
    std::atomic<bool> stop{false};
    std::thread poster([&] {
      std::mt19937 random(7);
      while (!stop) {
        if (Completion<int>* completion = mailbox.exchange(nullptr)) {
          if (random() % 4 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 60));
          }
          completion->set_value(1);
        } else {
          std::this_thread::yield();
        }
      }
    });
    const int sum = loop.run(
        [](std::atomic<Completion<int>*>* box) -> Task<int> {
          int total = 0;
          for (int i = 0; i < 3000; ++i) {
            Completion<int> completion(EventLoop::current());
            box->store(&completion);
            total += co_await completion;
          }
          co_return total;
        },
        &mailbox);
    stop = true;
    poster.join();
    EXPECT_EQ(sum, 3000);
  }
}

struct CountOp : Op {
  CountOp()
      : Op([](Op& op) noexcept {
          auto& self = static_cast<CountOp&>(op);
          if (++*self.count == self.last) {
            self.done->set();
          }
        }) {}
  int* count = nullptr;
  int last = 0;
  Event* done = nullptr;
};

TEST(CrossThread, ManyThreadsPostIntoALoopThatSleepsAndWakes) {
  constexpr int kThreads = 4;
  constexpr int kOps = 5000;
  EventLoop loop({.spin = Spin::kNever});
  int count = 0;
  Event done;
  std::vector<std::vector<CountOp>> ops(kThreads);
  for (auto& mine : ops) {
    mine = std::vector<CountOp>(kOps);
    for (CountOp& op : mine) {
      op.count = &count;
      op.last = kThreads * kOps;
      op.done = &done;
    }
  }
  std::vector<std::thread> threads;
  for (auto& mine : ops) {
    threads.emplace_back([&loop, &mine] {
      for (int i = 0; i < kOps; ++i) {
        loop.post_from_any_thread(mine[static_cast<std::size_t>(i)]);
        if (i % 64 == 0) {
          std::this_thread::yield();
        }
      }
    });
  }
  loop.run([](Event* event) -> Task<> { co_await *event; }, &done);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(count, kThreads * kOps);
}

TEST(CrossThread, ALoopMayDieRightAfterTheLastCompletion) {
  // The poster may still be inside the wake when the awaiting run() returns.
  for (int i = 0; i < 300; ++i) {
    std::thread poster;
    {
      auto loop = std::make_unique<EventLoop>(EventLoop::Options{.spin = Spin::kNever});
      Completion<void> completion(*loop);
      poster = std::thread([&completion] { completion.set_value(); });
      loop->run([](Completion<void>* c) -> Task<> { co_await *c; }, &completion);
    }
    poster.join();
  }
}

TEST(CrossThread, CompletionCarriesAnExceptionAndMayComeFirst) {
  EventLoop loop;
  Completion<int> completion(loop);
  completion.set_error(std::make_exception_ptr(std::runtime_error("elsewhere")));
  EXPECT_THROW(
      loop.run([](Completion<int>* c) -> Task<int> { co_return co_await *c; }, &completion),
      std::runtime_error);
}

TEST(CrossThreadDeathTest, PostingFromAnotherThreadIsCaughtInDebugBuilds) {
  if (!kDebugChecks) {
    GTEST_SKIP() << "this check is on in debug and sanitizer builds only";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        loop.run(
            [](EventLoop* l) -> Task<> {
              CountOp op;
              std::thread([&] { l->post(op); }).join();
              co_return;
            },
            &loop);
      },
      "belongs to the loop's thread");
}

}  // namespace
}  // namespace tandem
