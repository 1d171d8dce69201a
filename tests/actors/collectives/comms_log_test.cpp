#include "actors/collectives/comms_log.hpp"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TimePoint at(int ms) { return TimePoint() + milliseconds(ms); }

CommsKey key(flight::Kind what, std::uint64_t bytes, std::uint32_t unit = 0) {
  return {.ranks = 2, .what = what, .bytes = bytes, .unit = unit};
}

TEST(CommsLog, TheLanesWaitsAreAClockOfTheirOwn) {
  CommsLog log({});
  log.lane_waits(CommSequence::kGathers, at(10));
  log.lane_waits(CommSequence::kGathers, at(12));  // within it
  EXPECT_EQ(log.stood_still(CommSequence::kGathers, at(15)), milliseconds(5));
  log.lane_goes_on(CommSequence::kGathers, at(16));
  log.lane_goes_on(CommSequence::kGathers, at(20));
  EXPECT_EQ(log.stood_still(CommSequence::kGathers, at(99)), milliseconds(10));
  EXPECT_EQ(log.stood_still(CommSequence::kReductions, at(99)), milliseconds(0));
}

TEST(CommsLog, CountsByOperationAndSize) {
  CommsLog log({});
  log.add(key(flight::Kind::kAllGather, 64, 1), milliseconds(4), milliseconds(1));
  log.add(key(flight::Kind::kAllGather, 64, 2), milliseconds(6), milliseconds(0));
  log.add(key(flight::Kind::kReduceScatter, 64), milliseconds(2), milliseconds(2));
  ASSERT_THAT(log.rows(), SizeIs(2));
  const CommsCount& gathers = log.rows().begin()->second;
  EXPECT_EQ(gathers.operations, 2U);
  EXPECT_DOUBLE_EQ(gathers.total_s, 0.010);
  EXPECT_DOUBLE_EQ(gathers.exposed_s, 0.001);
  EXPECT_THAT(gathers.latest_s, ElementsAre(0.004F, 0.006F));
  EXPECT_THAT(log.take_verbose(), SizeIs(0));
}

TEST(CommsLog, MemoryIsBounded) {
  CommsLog log({.verbose = true});
  for (std::uint64_t i = 0; i < CommsLog::kLatest + 3; ++i) {
    log.add(key(flight::Kind::kAllGather, 8), milliseconds(i < CommsLog::kLatest ? 1 : 2), {});
  }
  EXPECT_THAT(log.take_verbose(), SizeIs(CommsLog::kMostVerbose));
  EXPECT_TRUE(log.verbose_is_full());
  const CommsCount& row = log.rows().begin()->second;
  EXPECT_EQ(row.operations, CommsLog::kLatest + 3);
  ASSERT_THAT(row.latest_s, SizeIs(CommsLog::kLatest));
  EXPECT_EQ(row.latest_s[2], 0.002F) << "the newest stand in the place of the oldest";
  EXPECT_EQ(row.latest_s[3], 0.001F);
  for (std::uint64_t size = 0; size < CommsLog::kMostRows + 5; ++size) {
    log.add(key(flight::Kind::kAllGather, 100 + size), milliseconds(1), {});
  }
  EXPECT_THAT(log.rows(), SizeIs(CommsLog::kMostRows));
  EXPECT_EQ(log.left_out(), 6U);
  EXPECT_THAT(log.take_verbose(), SizeIs(0));
}

TEST(CommsLog, CountsWhatIsAskedFor) {
  CommsLog log(
      {.operations = 1U << static_cast<unsigned>(flight::Kind::kAllReduce), .by_unit = true});
  log.add(key(flight::Kind::kAllGather, 8), milliseconds(1), {});
  log.add(key(flight::Kind::kAllReduce, 8, 3), milliseconds(1), {});
  log.add(key(flight::Kind::kAllReduce, 8, 4), milliseconds(1), {});
  EXPECT_THAT(log.rows(), SizeIs(2));
  EXPECT_EQ(log.rows().rbegin()->first.unit, 4U);
}

}  // namespace
}  // namespace tandem
