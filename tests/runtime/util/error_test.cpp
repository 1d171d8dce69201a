#include "runtime/util/error.hpp"

#include <gtest/gtest.h>

#include "runtime/exit_reason.hpp"

namespace tandem {
namespace {

TEST(ErrorCategories, SayWhatMayBeRestarted) {
  EXPECT_TRUE(user_error("x", "y").restartable());
  EXPECT_FALSE(device_error("gpu", "lost").restartable());
  EXPECT_FALSE(collective_error("comm", "timed out").restartable());
  EXPECT_EQ(collective_error("comm", "timed out").code(), ExitCode::kPeer);
  EXPECT_FALSE(failure(ExitCode::kPeer, "comm", "gone").restartable());
  const ExitReason reason{.kind = ExitReason::Kind::kFailed,
                          .error = std::make_exception_ptr(device_error("gpu", "lost"))};
  EXPECT_FALSE(reason.restartable());
  EXPECT_TRUE(ExitReason{}.restartable());
}

}  // namespace
}  // namespace tandem
