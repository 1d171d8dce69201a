#include <iostream>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "tests/model/flawed_inbox.hpp"
#include "tests/model/inbox_program.hpp"

namespace tandem::model {
namespace {

void expect_correct(const Result& result, std::uint64_t at_least) {
  EXPECT_FALSE(result.failed) << result.failure;
  EXPECT_TRUE(result.complete);
  EXPECT_GE(result.executions, at_least);
  std::cout << result.executions << " executions, " << result.redundant << " cut as redundant\n";
}
void expect_found(const Result& result, const char* what) {
  EXPECT_TRUE(result.failed) << "not found in " << result.executions << " executions";
  EXPECT_NE(result.failure.find(what), std::string::npos) << result.failure;
}

using NoAcquire = WeakenedAtomics<Weaken::kAcquire>;
using NoRelease = WeakenedAtomics<Weaken::kRelease>;
template <class A, class N>
using Inbox = BasicMpscInbox<A, N>;
template <class A>
using Wakes = BasicWakeCounter<A>;

// ---- the checker itself, on textbook programs
struct Two {
  Atomic<int> x{0};
  Atomic<int> y{0};
  Plain<int> data;
  int saw_x = -1;
  int saw_y = -1;
};

bool store_buffering_seen(std::memory_order store, std::memory_order load) {
  bool both_old = false;
  const Result result = explore([&](Execution& run) {
    auto s = std::make_shared<Two>();
    run.thread([s, store, load] {
      s->x.store(1, store);
      s->saw_y = s->y.load(load);
    });
    run.thread([s, store, load] {
      s->y.store(1, store);
      s->saw_x = s->x.load(load);
    });
    run.at_end([s, &both_old] { both_old = both_old || (s->saw_x == 0 && s->saw_y == 0); });
  });
  EXPECT_TRUE(result.complete);
  return both_old;
}

TEST(ModelChecker, SeesStoreBufferingEvenWithAcquireAndRelease) {
  EXPECT_TRUE(store_buffering_seen(std::memory_order_relaxed, std::memory_order_relaxed));
  EXPECT_TRUE(store_buffering_seen(std::memory_order_release, std::memory_order_acquire));
}

Result message_passing(std::memory_order store, std::memory_order load) {
  return explore([=](Execution& run) {
    auto s = std::make_shared<Two>();
    run.thread([s, store] {
      s->data = 7;
      s->x.store(1, store);
    });
    run.thread([s, load] {
      if (s->x.load(load) == 1) {
        check(s->data == 7, "the data came with the flag");
      }
    });
  });
}

TEST(ModelChecker, MessagePassingNeedsReleaseAndAcquire) {
  expect_correct(message_passing(std::memory_order_release, std::memory_order_acquire), 2);
  expect_found(message_passing(std::memory_order_relaxed, std::memory_order_acquire), "data race");
  expect_found(message_passing(std::memory_order_release, std::memory_order_relaxed), "data race");
}

TEST(ModelChecker, ALoadNeverGoesBackBehindWhatWasSeen) {
  const Result result = explore([](Execution& run) {
    auto s = std::make_shared<Two>();
    run.thread([s] {
      s->x.store(1, std::memory_order_relaxed);
      s->x.store(2, std::memory_order_relaxed);
    });
    run.thread([s] {
      const int first = s->x.load(std::memory_order_relaxed);
      check(s->x.load(std::memory_order_relaxed) >= first, "coherence");
    });
  });
  expect_correct(result, 3);
}

TEST(ModelChecker, FindsALostUpdateADeadlockAndAUseAfterTheEnd) {
  expect_found(
      explore([](Execution& run) {
        auto s = std::make_shared<Two>();
        for (int i = 0; i < 2; ++i) {
          run.thread([s] {
            s->x.store(s->x.load(std::memory_order_acquire) + 1, std::memory_order_release);
          });
        }
        run.at_end([s] { check(s->x.load(std::memory_order_relaxed) == 2, "both count"); });
      }),
      "both count");
  expect_found(explore([](Execution& run) {
                 auto s = std::make_shared<Two>();
                 run.thread([s] { s->x.wait_while(0); });
                 run.thread([s] {
                   s->x.wake_one();  // too early
                   s->x.store(1, std::memory_order_release);
                 });
               }),
               "deadlock");
  expect_found(explore([](Execution& run) {
                 auto box = std::make_shared<std::optional<Atomic<int>>>(0);
                 run.thread([box] { (*box)->store(1, std::memory_order_relaxed); });
                 run.thread([box] { box->reset(); });
               }),
               "destr");
}

TEST(ModelChecker, CountsInterleavingsUpToCommutingSteps) {
  // Three threads with two increments of one counter each: 6! / (2! 2! 2!) orders, none of which
  // commute.
  expect_correct(explore([](Execution& run) {
                   auto s = std::make_shared<Two>();
                   for (int i = 0; i < 3; ++i) {
                     run.thread([s] {
                       s->x.fetch_add(1, std::memory_order_relaxed);
                       s->x.fetch_add(1, std::memory_order_relaxed);
                     });
                   }
                 }),
                 90);
}

// ---- the runtime's protocols
TEST(InboxModel, ALoopLosesNothingAndIsWokenOncePerSleep) {
  expect_correct(explore(&LoopProgram<Inbox, ModelAtomics, Sleep, 1, 1>::build), 1000);
}

TEST(InboxModel, ALoopWithThreePushesOfOneThread) {
  expect_correct(explore(&LoopProgram<Inbox, ModelAtomics, Sleep, 3, 0>::build), 100);
}

TEST(InboxModel, ALaneLosesNothing) {
  expect_correct(explore(&LaneProgram<Inbox, Wakes, ModelAtomics, SleepOnWakes, 1>::build), 100);
}

// A timed sleep ends by itself: the thread looks again for a while, and sleeps again.
TEST(InboxModel, ALoopThatAnAlarmWakesLosesNothing) {
  expect_correct(explore(&LoopProgram<Inbox, ModelAtomics, Sleep, 2, 0, AlarmedReactor>::build),
                 100);
}

TEST(InboxModel, ALaneThatAnAlarmWakesLosesNothing) {
  expect_correct(explore(&LaneProgram<Inbox, Wakes, ModelAtomics, SleepOnWakes, 2, true>::build),
                 100);
}

// ---- teeth: each flaw is found
template <Flaw kFlaw>
struct With {
  template <class A, class N>
  using Inbox = FlawedInbox<A, N, kFlaw>;
};
template <Flaw kFlaw>
Result loop_with() {
  return explore(&LoopProgram<With<kFlaw>::template Inbox, ModelAtomics, Sleep, 1, 1>::build);
}

TEST(InboxModel, TheCopyThatFlawsArePlantedInIsCorrect) {
  expect_correct(loop_with<Flaw::kNone>(), 1000);
}
TEST(InboxModel, FindsAMissingRecheckBeforeSleep) {
  expect_found(loop_with<Flaw::kSleepsUnseen>(), "");
}
TEST(InboxModel, FindsAWakeDecidedByAnOldHead) {
  expect_found(loop_with<Flaw::kWakesByOldHead>(), "");
}
TEST(InboxModel, FindsAWakeOnlyOfAnEmptyInbox) {
  expect_found(loop_with<Flaw::kWakesIfEmpty>(), "");
}
TEST(InboxModel, FindsATakeInTwoSteps) { expect_found(loop_with<Flaw::kTakesInTwoSteps>(), ""); }
TEST(InboxModel, FindsNewestFirst) {
  expect_found(
      explore(&LoopProgram<With<Flaw::kNewestFirst>::Inbox, ModelAtomics, Sleep, 2, 0>::build),
      "in order");
}
TEST(InboxModel, FindsAPushThatTouchesItsNodeAfterwards) {
  expect_found(loop_with<Flaw::kTouchesAfterPush>(), "data race");
}
TEST(InboxModel, FindsASleeperThatNeverOwes) { expect_found(loop_with<Flaw::kNeverOwes>(), ""); }
TEST(InboxModel, FindsASleeperThatAlwaysOwes) { expect_found(loop_with<Flaw::kTagTwice>(), ""); }
TEST(InboxModel, FindsEachOrderThatIsNeeded) {
  expect_found(explore(&LoopProgram<Inbox, NoAcquire, Sleep, 1, 1>::build), "data race");
  expect_found(explore(&LoopProgram<Inbox, NoRelease, Sleep, 1, 1>::build), "data race");
  expect_found(explore(&LaneProgram<Inbox, Wakes, NoAcquire, SleepOnWakes, 1>::build), "data race");
  expect_found(explore(&LaneProgram<Inbox, Wakes, NoRelease, SleepOnWakes, 1>::build), "data race");
}

struct RestartsTooLate {
  template <class I, class Queue>
  static bool sleep(I& inbox, Queue& queue, Reactor& reactor) {
    if (!inbox.try_sleep()) {
      return false;
    }
    reactor.restart();  // forgets a wake that has come meanwhile
    reactor.run_one();
    return inbox.wake_up(queue);
  }
};
TEST(InboxModel, FindsARestartAfterTheTag) {
  expect_found(explore(&LoopProgram<Inbox, ModelAtomics, RestartsTooLate, 1, 1>::build),
               "deadlock");
}

template <class Atomics>
struct WakesBeforeCounting {
  void wait() noexcept {
    while (count.load(std::memory_order_acquire) == seen) {
      Atomics::wait(count, seen);
    }
    ++seen;
  }
  bool wait_until(auto) noexcept {
    wait();
    return true;
  }
  void wake() noexcept {
    Atomics::wake_one(count);
    count.fetch_add(1, std::memory_order_release);
  }
  typename Atomics::template Atomic<int> count{0};
  int seen = 0;
};
TEST(InboxModel, FindsAWakeBeforeItsCount) {
  expect_found(
      explore(&LaneProgram<Inbox, WakesBeforeCounting, ModelAtomics, SleepOnWakes, 1>::build),
      "deadlock");
}

struct LeavesAWakeBehind {
  template <class I, class Queue, class W>
  static bool sleep(I& inbox, Queue& queue, W& wakes, Atomic<int>* alarm) {
    if (!inbox.try_sleep()) {
      return false;
    }
    const bool woken = wakes.wait_until(alarm);
    (void)inbox.wake_up(queue);  // a push that came with the alarm wakes the next sleep
    return woken;
  }
};
TEST(InboxModel, FindsAWakeThatIsLeftBehind) {
  expect_found(explore(&LaneProgram<Inbox, Wakes, ModelAtomics, LeavesAWakeBehind, 2, true>::build),
               "a wake ends");
}

struct SleepsUnseen {
  template <class I, class Queue, class W>
  static bool sleep(I& inbox, Queue& queue, W& wakes, Atomic<int>* alarm) {
    if (!inbox.seems_empty()) {
      return false;
    }
    return wakes.wait_until(alarm);  // as if it still looked
  }
};
TEST(InboxModel, FindsASleepThatNobodyWasTold) {
  expect_found(explore(&LaneProgram<Inbox, Wakes, ModelAtomics, SleepsUnseen, 2, true>::build),
               "deadlock");
}

}  // namespace
}  // namespace tandem::model
