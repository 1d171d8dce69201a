#include "runtime/supervision/describe.hpp"

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/detail/await_chain.hpp"
#include "runtime/supervision/watchdog.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Note {
  int value;
};
struct Sleepy : Actor<Sleepy, Note> {
  Sleepy() : Actor("sleepy") {}
  Task<> handle(Note) { co_await sleep_for(1h, scope().stop_token()); }
};

class DescribeTest : public ::testing::Test {
 protected:
  void pass(Duration time) {
    loop.run([](Duration t) -> Task<> { co_await sleep_for(t); }, time);
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope scope{loop, "root"};
};

Task<> inner(Event* event) { co_await *event; }
template <class T>
Task<> outer(Event* event, T) {
  co_await sleep_for(2s);
  co_await inner(event);
}

TEST_F(DescribeTest, EachFrameHasItsFunctionItsLineAndHowLongItWaits) {
  Event event;
  scope.spawn("reader", &outer<int>, &event, 1);
  EXPECT_THAT(scope.describe(), HasSubstr("reader (runtime/scope.hpp:"));
  EXPECT_THAT(scope.describe(), HasSubstr("not started)"));
  pass(5s);
  const std::string text = scope.describe();
  EXPECT_THAT(text, HasSubstr("scope \"root\": 1 running\n  reader (runtime/scope.hpp:"));
  EXPECT_THAT(
      text,
      ContainsRegex(
          ", 5.000 s\\) <- outer \\(supervision/describe_test.cpp:[0-9]+, 3.000 s\\) <- inner "
          "\\(supervision/describe_test.cpp:40, 3.000 s\\) <- \\[event\\]\n"));
  event.set();
  loop.run(&Scope::join, &scope);
}

TEST_F(DescribeTest, ALoopTellsOfAllScopesActorsAsksAndTimers) {
  Sleepy sleepy;
  sleepy.start(scope);
  for (int i = 0; i < 3; ++i) {
    (void)sleepy.address().try_send(Note{i});
  }
  Scope second(loop, "second");
  pass(1s);
  std::string inside;
  loop.run(
      [](EventLoop* l, std::string* out) -> Task<> {
        *out = describe_tasks(*l);
        co_return;
      },
      &loop, &inside);
  EXPECT_THAT(inside, HasSubstr("\n  main ("));
  const std::string text = describe_tasks(loop);
  EXPECT_THAT(
      text,
      HasSubstr("loop \"test\" at 1.000 s: 2 scopes, 1 actor, 0 asks without an answer, 1 timer\n"
                "scope \"root\": 1 running\n  sleepy ("));
  EXPECT_THAT(text, HasSubstr("<- pump (runtime/actor.hpp:"));
  EXPECT_THAT(
      text,
      ContainsRegex("<- handle \\(supervision/describe_test.cpp:27, 1.000 s\\) <- \\[sleep\\]\n"));
  EXPECT_THAT(text, HasSubstr("scope \"second\": 0 running\nactor sleepy: 2 messages wait\n"));
  scope.request_stop();
  loop.run(&Scope::join, &scope);
  EXPECT_THAT(describe_tasks(loop), HasSubstr("0 actors"));
}

TEST_F(DescribeTest, FunctionNamesAreShort) {
  using detail::short_function_name;
  EXPECT_EQ(short_function_name("Task<> app::(anonymous namespace)::parse(Reader *, int)"),
            "parse");
  EXPECT_EQ(short_function_name("Task<> tandem::Actor<tandem::Book, tandem::Note>::pump()"),
            "pump");
  EXPECT_EQ(short_function_name(
                "auto tandem::Test::Body()::(anonymous class)::operator()(Event *) const"),
            "lambda");
  EXPECT_EQ(short_function_name("auto Body()::<lambda(int)>::operator()(int) const"), "lambda");
  EXPECT_EQ(short_function_name("tandem::Task<> tandem::outer(Event*, T) [with T = int]"), "outer");
  EXPECT_EQ(
      short_function_name(
          "Task<> tandem::run_spawned(Factory, Args...) [Factory = tandem::Task<void> (*)(int)]"),
      "run_spawned");
  EXPECT_EQ(short_function_name("std::vector<int> *get<std::pair<int, int>>(int (*)(int))"), "get");
  EXPECT_EQ(short_function_name("main"), "main");
}

TEST_F(DescribeTest, TheWatchdogReportsEachLongWaitOnce) {
  clock.advance(1s);  // a wait since 0 would look as if it had been reported
  std::vector<std::string> reports;
  Watchdog watchdog(
      loop, {.limit = 10s, .report = [&](const std::string& line) { reports.push_back(line); }});
  Sleepy idle;
  idle.start(scope);
  Event event;
  scope.spawn("reader", &outer<int>, &event, 1);
  scope.spawn(
      "walker",
      [](StopToken stop) -> Task<> {
        for (;;) {
          co_await sleep_for(1s, stop);  // the same line again and again, but never for long
        }
      },
      scope.stop_token());
  pass(11s);
  EXPECT_TRUE(reports.empty()) << reports[0];
  pass(60s);
  ASSERT_EQ(reports.size(), 2U);  // pass() itself sleeps for 60 s
  EXPECT_THAT(reports[0], HasSubstr("[watchdog] a task waits for 1"));
  EXPECT_THAT(reports[0] + reports[1], HasSubstr("reader (runtime/scope.hpp:"));
  EXPECT_THAT(reports[0] + reports[1], HasSubstr("<- inner (supervision/describe_test.cpp:40, 1"));
  EXPECT_THAT(reports[0] + reports[1], HasSubstr("main ("));
  EXPECT_EQ(watchdog.reports(), 2U);
  event.set();
  scope.request_stop();
  loop.run(&Scope::join, &scope);
}

TEST_F(DescribeTest, TheWatchdogDoesNotCountTimeInWhichTheLoopDidNotRun) {
  clock.advance(1s);
  std::vector<std::string> reports;
  Watchdog watchdog(
      loop, {.limit = 10s, .report = [&](const std::string& line) { reports.push_back(line); }});
  Event event;
  scope.spawn("reader", &inner, &event);
  pass(1s);
  clock.advance(1h);  // between two calls of a program
  pass(8s);
  EXPECT_TRUE(reports.empty()) << reports[0];
  pass(8s);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_THAT(reports[0], HasSubstr("[watchdog] a task waits for 1"));
  EXPECT_THAT(reports[0], HasSubstr("reader ("));
  event.set();
  loop.run(&Scope::join, &scope);
}

TEST(DumpTest, OnRequestFromAnotherThreadAndOnASignal) {
  EventLoop loop({.name = "real"});
  Scope scope(loop, "root");
  Event event;
  scope.spawn("stuck", &inner, &event);
  ::testing::internal::CaptureStderr();
  {
    const DumpOnSignal on_signal(loop, SIGUSR2);
    loop.run(
        [](EventLoop* l) -> Task<> {
          co_await yield();
          std::thread([l] { request_dump(*l); }).join();
          std::raise(SIGUSR2);
          co_await sleep_for(20ms);
        },
        &loop);
  }
  event.set();
  loop.run(&Scope::join, &scope);
  const std::string text = ::testing::internal::GetCapturedStderr();
  const std::size_t first = text.find("scope \"root\": 1 running\n  stuck (");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_NE(text.find("scope \"root\": 1 running\n  stuck (", first + 1), std::string::npos)
      << text;
}

}  // namespace
}  // namespace tandem
