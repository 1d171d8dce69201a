// The progress bar of a trainer on a terminal.
#include "examples/support/console.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(Progress, BarShowsShareAndRemainingTime) {
  EXPECT_EQ(progress_bar({.step = 5, .total_steps = 20, .steps_here = 5, .elapsed_s = 10}, 60),
            "[#####.................]  5/20  25%  elapsed 0:10  left 0:30");
  EXPECT_EQ(progress_bar({.step = 15, .total_steps = 20, .steps_here = 5, .elapsed_s = 10}, 20),
            "15/20  75%  elapsed ")
      << "cut to the terminal";
  EXPECT_THAT(progress_bar({.step = 15, .total_steps = 20, .steps_here = 5, .elapsed_s = 10}, 99),
              HasSubstr("left 0:10"))
      << "a resumed run counts its own steps";
  EXPECT_EQ(progress_bar({.step = 5, .elapsed_s = 61}, 60), "step 5  elapsed 1:01");
  EXPECT_EQ(duration_text(3723.4), "1:02:03");
  EXPECT_EQ(duration_text(std::nan("")), "?");
}

TEST(Progress, ModesByName) {
  EXPECT_EQ(progress_mode_of("auto"), ProgressMode::kAuto);
  EXPECT_EQ(progress_mode_of("bar"), ProgressMode::kBar);
  EXPECT_EQ(progress_mode_of("lines"), ProgressMode::kLines);
  EXPECT_EQ(progress_mode_of("off"), ProgressMode::kOff);
  EXPECT_THROW(static_cast<void>(progress_mode_of("line")), Error);
}

}  // namespace
}  // namespace tandem
