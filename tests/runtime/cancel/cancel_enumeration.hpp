// tests/runtime/cancel/cancel_enumeration.hpp — runs a scenario once for every point at which it
// can be stopped.
//
// A scenario is a struct with `Task<> run()`, the coroutine to be stopped, made anew for each round
// on a loop in virtual time. A stepper goes through the loop's queue between any two things that
// happen there: whatever is suspended was put into the queue (or into a list) while the stepper
// stood in it, so each suspension is seen by at least one step. The first round counts the steps;
// round k requests the stop of the scenario's scope at step k. Then must hold:
// - the scope is joined: run() has ended, with its value or by Stopped, and within `kMostSteps`
// - what run() did is a prefix of what it does unstopped, each step once (pass())
// - nothing is left: Tracked objects, asks, and whatever the scenario's finish() checks (credits,
// mailboxes) Optional: `void between(int step)`, called at each step: what comes from outside;
// `Task<> finish()`.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem::test {

/// Something in a frame or a message that must not outlive the scenario.
struct Tracked {
  Tracked() noexcept { ++alive; }
  Tracked(const Tracked&) noexcept { ++alive; }
  Tracked(Tracked&&) noexcept { ++alive; }
  Tracked& operator=(const Tracked&) noexcept = default;
  Tracked& operator=(Tracked&&) noexcept = default;
  ~Tracked() { --alive; }
  static inline std::atomic<int> alive{0};
};

/// The parts of a scenario, besides its run().
class Scenario {
 public:
  virtual ~Scenario() = default;
  explicit Scenario(EventLoop& on) : loop(on) {}
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  virtual Task<> run() = 0;
  virtual void between(int /*step*/) {}
  virtual Task<> finish() { co_return; }

  /// In finish(): lets a virtual millisecond pass.
  Task<> tick() {
    between(kFinishing);
    clock->advance(std::chrono::milliseconds(1));
    co_await sleep_for(Duration(0));
  }

  static constexpr int kFinishing = -1;  // as a step

  /// In between(), where run() waits for other threads: they get this one's processor while nothing
  /// is queued here.
  void let_threads_run() {
    if (!loop.has_ready_ops()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  /// The next thing that run() has done.
  void pass() { ++passed; }

  EventLoop& loop;
  int passed = 0;
  bool ended = false;
  bool finished = false;  // by its value
  const TaskPromiseBase* root = nullptr;
  ManualClock* clock = nullptr;
};

struct Round {
  int steps = 0;
  int passed = 0;
  bool finished = false;
  std::string waited_for;  // run()'s wait at the stop; empty: it had no name
};

constexpr int kMostSteps = 2'000'000;
constexpr int kNever = kMostSteps;
// of a scenario; one with more steps (the loop's idle turns) is stopped at every n-th
constexpr int kMostRounds = 80;

namespace enumeration {

/// Notes the promise of the awaiting coroutine: from there the innermost await can be found.
struct NotePromise {
  const TaskPromiseBase** into;
  bool await_ready() const noexcept { return false; }
  template <std::derived_from<TaskPromiseBase> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) const noexcept {
    *into = &self.promise();
    return false;
  }
  void await_resume() const noexcept {}
};

inline Task<> run_scenario(Scenario* scenario) {
  struct End {
    Scenario* scenario;
    Tracked tracked;
    ~End() { scenario->ended = true; }
  };
  const End end{scenario, {}};
  co_await NotePromise{&scenario->root};
  co_await scenario->run();
  scenario->finished = true;
}

inline std::string innermost(const TaskPromiseBase* promise) {
  while (promise->child != nullptr) {
    promise = promise->child;
  }
  return promise->waiting_for != nullptr ? promise->waiting_for : "";
}

inline Task<> step_through(Scenario* scenario, Scope* scope, ManualClock* clock, int stop_at,
                           Round* round) {
  for (; !scenario->ended; ++round->steps) {
    if (round->steps == stop_at) {
      round->waited_for = scenario->root != nullptr ? innermost(scenario->root) : "";
      scope->request_stop();
    }
    if (round->steps > kMostSteps) {
      ADD_FAILURE() << "never ends: " << scope->describe();
      std::abort();
    }
    scenario->between(round->steps);
    clock->advance(std::chrono::milliseconds(1));
    if (scenario->loop.has_ready_ops()) {
      co_await yield();
    } else {
      co_await sleep_for(
          Duration(0));  // nothing is queued: inbox and timers get their turn, and are seen
    }
  }
  co_await scope->join();
  co_await scenario->finish();
}

}  // namespace enumeration

template <class S>
Round run_once(int stop_at) {
  Round round;
  ManualClock clock(ManualClock::Idle::kWait);
  clock.advance(std::chrono::milliseconds(1));
  {
    EventLoop loop({.name = "cancel", .clock = &clock, .stall_limit = Duration(0)});
    {
      S scenario(loop);
      scenario.clock = &clock;
      Scope scope(loop, "subject");
      scope.spawn("subject", &enumeration::run_scenario, static_cast<Scenario*>(&scenario));
      loop.run(&enumeration::step_through, static_cast<Scenario*>(&scenario), &scope, &clock,
               stop_at, &round);
      EXPECT_EQ(scope.running(), 0U);
      EXPECT_EQ(loop.asks().pending(), 0U);
      round.passed = scenario.passed;
      round.finished = scenario.finished;
    }
  }
  EXPECT_EQ(Tracked::alive.load(), 0);
  return round;
}

/// Stops S at every step; returns the names of the awaits that it was stopped in.
template <class S>
std::set<std::string> enumerate_cancels(const char* name) {
  SCOPED_TRACE(name);
  std::set<std::string> stopped_in;
  const Round whole = run_once<S>(kNever);
  EXPECT_TRUE(whole.finished);
  EXPECT_GT(whole.steps, 0);
  int stopped = 0;
  const int stride = 1 + whole.steps / kMostRounds;
  for (int at = 0; at < whole.steps; at += stride) {
    SCOPED_TRACE("stopped at step " + std::to_string(at));
    const Round round = run_once<S>(at);
    EXPECT_LE(round.passed, whole.passed);
    EXPECT_EQ(round.finished, round.passed == whole.passed);
    stopped += round.finished ? 0 : 1;
    stopped_in.insert(round.waited_for);
    if (::testing::Test::HasFailure()) {
      break;
    }
  }
  std::string names;
  for (const std::string& one : stopped_in) {
    names += (names.empty() ? "" : ", ") + (one.empty() ? "-" : one);
  }
  std::printf("  %-28s %4d steps, ended early %4d times; in: %s\n", name, whole.steps, stopped,
              names.c_str());
  return stopped_in;
}

}  // namespace tandem::test
