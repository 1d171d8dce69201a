// A task on a rank's loop that is stuck is reported once; a run that goes on prints nothing.
#include <chrono>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

Task<> wait_for_ever(Event* event) { co_await *event; }

TEST(RankWatchdog, ReportsAStuckTaskOnceAndTheRunGoesOn) {
  InitializeArgs arguments = toy::arguments({});
  arguments.options.report_waits_s = 0.4;
  Engine engine(std::move(arguments));
  Scope scope(engine.loop(), "planted");
  Event never;
  scope.spawn("stuck", &wait_for_ever, &never);
  testing::internal::CaptureStderr();
  for (int pause = 0; pause < 20; ++pause) {  // no pause is as long as the limit
    engine.loop().run([]() -> Task<> { co_await sleep_for(100ms); });
  }
  const StepResult result = engine.train_step(std::vector{toy::batch(0)});
  never.set();
  engine.loop().run(&Scope::join, &scope);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.step, 1);
  EXPECT_THAT(text, HasSubstr("[watchdog] a task waits for 0."));
  EXPECT_THAT(text, HasSubstr("stuck ("));
  EXPECT_THAT(text, HasSubstr("<- wait_for_ever ("));
  EXPECT_THAT(text, HasSubstr("<- [event]"));
  EXPECT_EQ(text.find("stuck ("), text.rfind("stuck (")) << text;
}

TEST(RankWatchdog, IsSilentInARunThatGoesOn) {
  testing::internal::CaptureStderr();
  (void)toy::train({}, 3);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("[watchdog]")));
}

}  // namespace
}  // namespace tandem
