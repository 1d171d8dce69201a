// Snippets of docs/runtime.md: quick start, tasks, scopes, stopping. tools/docs_in_step.py keeps
// the page equal to this.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// [quick_start]
#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/scope.hpp>

using namespace std::chrono_literals;
using tandem::Task;

struct Deposit {
  int cents;
};
struct Balance {
  using Reply = int;  // this makes it a request: it is asked, not sent
};

struct Account : tandem::Actor<Account, Deposit, Balance> {
  void handle(Deposit m) { cents_ += m.cents; }
  int handle(Balance) { return cents_; }

 private:
  int cents_ = 0;  // touched by one message at a time, so there is no lock
};

Task<int> save_up(Account::AddressType account) {
  for (int week = 0; week < 10; ++week) {
    co_await account.send(Deposit{500});  // waits while the mailbox is full
  }
  co_return co_await account.ask(Balance{}, 1s);  // throws DeadlineExceeded after a second
}

int quick_start() {
  tandem::EventLoop loop({.name = "bank"});
  tandem::Scope scope(loop, "actors");
  Account& account = scope.start<Account>();  // the scope owns it and ends it, come what may

  const int cents = loop.run(&save_up, account.address());

  loop.run(&tandem::Scope::join, &scope);  // closes it: what it accepted is handled, then it ends;
  return cents;                            // its error, if it has one, is rethrown here
}
// [/quick_start]

namespace {

// [task]
Task<int> twice(int x) {
  co_await tandem::sleep_for(1ms);
  co_return 2 * x;
}
Task<int> both(int a, int b) {
  const int first = co_await twice(a);   // one after the other:
  const int second = co_await twice(b);  // a task runs when it is awaited
  co_return first + second;
}
// [/task]

// [scope]
Task<> worker(std::vector<std::string>* log, std::string name, tandem::Duration work) {
  co_await tandem::sleep_for(work);
  log->push_back(name);
}

Task<> side_by_side(std::vector<std::string>* log) {
  co_await tandem::with_scope(
      [](tandem::Scope& scope, std::vector<std::string>* out) -> Task<> {
        scope.spawn("slow", &worker, out, std::string("slow"), 20ms);
        scope.spawn("quick", &worker, out, std::string("quick"), 10ms);
        co_return;  // with_scope waits for both
      },
      log);
  log->push_back("all done");
}
// [/scope]

// [stop]
Task<> until_told(int* rounds) {
  const tandem::StopToken stop = co_await tandem::current_stop_token();
  for (;;) {
    ++*rounds;
    co_await tandem::sleep_for(1s, stop);  // throws Stopped as soon as the scope is told to stop
  }
}

Task<> fails() {
  co_await tandem::sleep_for(2500ms);
  throw std::runtime_error("out of paper");
}

Task<> first_failure(int* rounds) {
  co_await tandem::with_scope(
      [](tandem::Scope& scope, int* count) -> Task<> {
        scope.spawn("polling", &until_told, count);
        scope.spawn("printing", &fails);
        co_return;
      },
      rounds);  // rethrows "out of paper" when both have ended
}
// [/stop]

TEST(DocsFirstSteps, TheQuickStartRuns) { EXPECT_EQ(quick_start(), 5000); }

TEST(DocsFirstSteps, TasksAndScopesRun) {
  tandem::ManualClock clock;
  tandem::EventLoop loop({.name = "docs", .clock = &clock});
  EXPECT_EQ(loop.run(&both, 1, 2), 6);
  std::vector<std::string> log;
  loop.run(&side_by_side, &log);
  EXPECT_EQ(log, (std::vector<std::string>{"quick", "slow", "all done"}));
}

TEST(DocsFirstSteps, AFailureStopsTheOthers) {
  tandem::ManualClock clock;
  tandem::EventLoop loop({.name = "docs", .clock = &clock});
  int rounds = 0;
  try {
    loop.run(&first_failure, &rounds);
    ADD_FAILURE() << "the failure was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of paper");
  }
  EXPECT_EQ(rounds, 3);
}

}  // namespace
