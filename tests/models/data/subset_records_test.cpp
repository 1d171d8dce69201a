#include "models/data/subset_records.hpp"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/data/memory_records.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

/// Record `first + i` holds that number and one of its own length.
std::shared_ptr<MemoryRecords> numbered(std::int32_t first, std::int32_t count) {
  auto records = std::make_shared<MemoryRecords>();
  for (std::int32_t i = first; i < first + count; ++i) {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(1 + i % 5), i);
    records->add(ids, std::vector<std::uint8_t>(ids.size(), 1));
  }
  return records;
}

std::set<std::int32_t> first_ids(const TokenRecords& records) {
  std::set<std::int32_t> firsts;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
  for (std::int64_t i = 0; i < records.size(); ++i) {
    records.read(i, ids, mask);
    EXPECT_EQ(records.length(i), static_cast<std::int64_t>(ids.size()));
    EXPECT_LE(records.length(i), records.longest());
    firsts.insert(ids.front());
  }
  return firsts;
}

TEST(SubsetRecords, AShareIsHeldOutAndTheRestIsLearnt) {
  const auto [learnt, held_out] = split_records(numbered(0, 2000), 0.1);
  EXPECT_EQ(learnt->size() + held_out->size(), 2000);
  EXPECT_GT(held_out->size(), 150);
  EXPECT_LT(held_out->size(), 250);
  const std::set<std::int32_t> kept = first_ids(*learnt);
  for (const std::int32_t id : first_ids(*held_out)) {
    EXPECT_FALSE(kept.contains(id));
  }
  EXPECT_NE(learnt->fingerprint(), held_out->fingerprint());
  EXPECT_EQ(held_out->fingerprint(), split_records(numbered(0, 2000), 0.1).second->fingerprint());
}

TEST(SubsetRecords, ARecordStaysWhereItIsWhateverComesBesideIt) {
  const std::set<std::int32_t> all = first_ids(*split_records(numbered(0, 600), 0.2).second);
  const std::set<std::int32_t> some = first_ids(*split_records(numbered(300, 200), 0.2).second);
  for (const std::int32_t id : some) {
    EXPECT_TRUE(all.contains(id)) << id;
  }
  EXPECT_EQ(some.size(),
            static_cast<std::size_t>(std::count_if(
                all.begin(), all.end(), [](std::int32_t id) { return id >= 300 && id < 500; })));
}

TEST(SubsetRecords, AShareThatLeavesNothingIsRefused) {
  EXPECT_THAT([] { (void)split_records(numbered(0, 3), 1e-9); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("of 3 records holds out 0")));
}

}  // namespace
}  // namespace tandem
