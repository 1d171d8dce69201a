// The runtime reports errors that no caller waits for to a hook, or on stderr.
#include "runtime/report.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/channel.hpp"
#include "runtime/completion.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/name.hpp"
#include "runtime/when_all.hpp"
#include "runtime/with_deadline.hpp"
#include "tests/runtime/embed/report_fixture.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct Report : ReportFixture {};
using ReportDeathTest = Report;

TEST_F(Report, AFailureThatNothingTookGoesToTheHook) {
  {
    Scope scope(loop);
    scope.spawn("work", []() -> Task<> {
      co_await yield();
      throw std::runtime_error("out of paper");
    });
    loop.run([](Scope* s) -> Task<> { co_await s->empty(); }, &scope);
  }
  EXPECT_THAT(g_said, ElementsAre(AllOf(HasSubstr("work"), HasSubstr("out of paper"))));
}

TEST_F(ReportDeathTest, ALineOfAFailedCheckGoesThereToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        set_report_hook([](std::string_view line) noexcept {
          std::fprintf(stderr, "hook: %s\n", std::string(line).c_str());
        });
        TANDEM_CHECK(1 + 1 == 3, "sums");
      },
      "check failed: 1 \\+ 1 == 3 \\(sums\\)\n.*hook: .*check failed: 1 \\+ 1 == 3");
}

Task<> forgets_its_token(Channel<int>* channel) { (void)co_await channel->receive(); }
Task<> free_later(Channel<int>* channel, Duration time) {
  co_await sleep_for(time);
  channel->close();
}

// ---- deadlines that an await keeps waiting
TEST_F(Report, AnAwaitThatKeepsADeadlineWaitingIsNamedOnce) {
  Channel<int> channel(1);
  Scope scope(loop);
  scope.spawn("free", &free_later, &channel, Duration(1min));
  EXPECT_THROW(
      loop.run([](Channel<int>* c) -> Task<> { co_await with_deadline(5s, &forgets_its_token, c); },
               &channel),
      DeadlineExceeded);
  EXPECT_THAT(g_said, ElementsAre(AllOf(HasSubstr("forgets_its_token"), HasSubstr("report_test"),
                                        HasSubstr("[a value in a channel]"),
                                        HasSubstr("current_stop_token()"))));
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(loop.armed_timers(), 0U);
}

TEST_F(Report, SoIsOneOfATaskBelowIt) {
  Channel<int> channel(1);
  Scope scope(loop);
  scope.spawn("free", &free_later, &channel, Duration(1min));
  EXPECT_THROW(loop.run(
                   [](Channel<int>* c) -> Task<> {
                     co_await with_deadline(
                         5s,
                         [](Channel<int>* of) -> Task<> {
                           (void)co_await when_all(forgets_its_token(of), forgets_its_token(of));
                         },
                         c);
                   },
                   &channel),
               DeadlineExceeded);
  EXPECT_THAT(g_said, ElementsAre(AllOf(HasSubstr("also asked to stop: when_all"),
                                        HasSubstr("[a value in a channel]"))));
  loop.run(&Scope::join, &scope);
}

TEST_F(Report, ATaskThatEndsSoonAfterItsDeadlineIsNotReported) {
  EXPECT_THROW(loop.run([]() -> Task<> {
    co_await with_deadline(1s, []() -> Task<> { co_await sleep_for(1500ms); });
  }),
               DeadlineExceeded);
  EXPECT_THROW(loop.run([]() -> Task<> {
    co_await with_deadline(
        1s, []() -> Task<> { co_await sleep_for(1h, co_await current_stop_token()); });
  }),
               DeadlineExceeded);
  loop.run(
      []() -> Task<> { co_await with_deadline(1h, []() -> Task<> { co_await sleep_for(1min); }); });
  EXPECT_TRUE(g_said.empty());
  EXPECT_EQ(loop.armed_timers(), 0U);
}

TEST_F(Report, AnErrorOfACompletionIsReportedUnlessItWasTaken) {
  const auto fail = [](bool takes) -> Task<> {
    Completion<int> arrived(EventLoop::current());
    arrived.set_error(std::make_exception_ptr(std::runtime_error("out of paper")));
    co_await sleep_for(1s);
    if (takes) {
      EXPECT_THROW((void)co_await arrived, std::runtime_error);
    }
  };
  loop.run(fail, true);
  EXPECT_TRUE(g_said.empty());
  loop.run(fail, false);
  EXPECT_THAT(g_said, ElementsAre(HasSubstr("out of paper")));
}

// ---- names
TEST_F(Report, NamesOfRunTimeAreCounted) {
  const std::size_t before = Name::made_at_run_time();
  for (int i = 0; i < 1000; ++i) {
    (void)Name("counted " + std::to_string(i % 10));
  }
  (void)Name("a literal");
  EXPECT_EQ(Name::made_at_run_time(), before + 10);
}

}  // namespace
}  // namespace tandem
