#include "runtime/util/check.hpp"

#include <cstddef>

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(CheckDeathTest, AComparisonSaysBothValues) {
  const std::size_t used = 70;
  const std::size_t room = 64;
  EXPECT_DEATH(TANDEM_CHECK_LE(used, room, "a slice fits"),
               "check_test.cpp.*check failed: used <= room, with 70 and 64 \\(a slice fits\\)");
  EXPECT_DEATH(TANDEM_CHECK_LT(-1, -2, "down"), "-1 < -2, with -1 and -2");
  EXPECT_DEATH(TANDEM_CHECK_EQ(0.5, 0.25, "halves"), "with 0.5 and 0.25");
}

TEST(Check, EvaluatesItsOperandsOnce) {
  int calls = 0;
  const auto next = [&] { return ++calls; };
  TANDEM_CHECK_EQ(next(), 1, "the first call");
  TANDEM_CHECK_LT(next(), 3, "the second");
  TANDEM_CHECK_LE(next(), 3, "the third");
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace tandem
