// Time in which the one who looks was not awake does not count; a busy machine's delays do.
#include "runtime/awake_time.hpp"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(AwakeTime, ALookThatComesFarTooLateWasSleep) {
  const TimePoint start(10s);
  AwakeTime awake(1s, start);
  EXPECT_EQ(awake.slept_since(start + 1s), 0s);
  EXPECT_EQ(awake.slept_since(start + 3500ms), 0s) << "late, because the machine is busy";
  EXPECT_EQ(awake.slept_since(start + 63500ms), 59s) << "one interval of it counts";
  EXPECT_EQ(awake.slept_since(start + 64500ms), 0s);
}

}  // namespace
}  // namespace tandem
