// Snippets of docs/runtime.md: parents and children, watching, shutting down. tools/docs_in_step.py
// keeps the page equal.
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/scope.hpp>
#include <tandem/runtime/supervision/children.hpp>
#include <tandem/runtime/supervision/monitor.hpp>
#include <tandem/runtime/supervision/shutdown.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

// [children]
struct Line {
  std::string text;
};

struct Parser : tandem::Actor<Parser, Line> {
  explicit Parser(std::vector<int>* out) : numbers(out) {}
  void handle(Line m) { numbers->push_back(std::stoi(m.text)); }  // throws for "x"
  std::vector<int>* numbers;
};

struct Farm : tandem::Actor<Farm, Line> {
  explicit Farm(std::vector<int>* out) : numbers(out) {}
  void on_start() { parser = children.start<Parser>(numbers); }
  Task<> handle(Line m) { co_await parser.send(std::move(m)); }
  tandem::OnExit on_child_exit(const tandem::ExitReason& reason) {
    return reason.failed() ? tandem::OnExit::kRestart : tandem::OnExit::kStop;
  }

  std::vector<int>* numbers;
  tandem::Children children{*this, {.limit = {.most = 3, .within = 10s}}};  // more: escalates
  Parser::AddressType parser;  // lives on when the parser is made afresh
};
// [/children]

// [monitor]
struct Guard : tandem::Actor<Guard, tandem::Down> {
  void handle(tandem::Down down) { seen.push_back(down.name); }
  std::vector<std::string> seen;
};
// [/monitor]

// [shutdown]
Task<> end_in_order(tandem::Scope* root) {
  tandem::Shutdown shutdown(*root, {.handle = 1s, .drain = 5s});
  const tandem::Shutdown::Report report = co_await shutdown.run();
  EXPECT_TRUE(report.clean) << report.text();  // one line per phase, and what was left behind
}
// [/shutdown]

TEST(DocsSupervision, AFailedChildIsMadeAfresh) {
  tandem::ManualClock clock;
  tandem::EventLoop loop({.name = "docs", .clock = &clock});
  tandem::Scope scope(loop, "actors");
  std::vector<int> numbers;
  Farm& farm = scope.start<Farm>(&numbers);
  Guard& guard = scope.start<Guard>();
  loop.run(
      [](Farm::AddressType to) -> Task<> {
        co_await to.send(Line{"1"});
        co_await to.send(Line{"x"});
        co_await to.send(Line{"3"});
        co_await tandem::sleep_for(10ms);
      },
      farm.address());
  EXPECT_EQ(numbers, (std::vector<int>{1, 3}));
  const tandem::Watch watch = tandem::watch(farm.address(), guard.address());
  farm.close();
  loop.run([]() -> Task<> { co_await tandem::sleep_for(10ms); });
  EXPECT_EQ(guard.seen, (std::vector<std::string>{"Farm"}));
  loop.run(&end_in_order, &scope);
}

}  // namespace
