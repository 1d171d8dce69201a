// Thousands of seeds keep every promise; the same seed is the same execution; every planted bug is
// found.
#include <cstdio>
#include <ostream>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/util/build.hpp"
#include "tests/sim/harness.hpp"

namespace tandem {

void PrintTo(Bug bug, std::ostream* out) { *out << sim_test::name_of(bug); }

}  // namespace tandem

namespace tandem::sim_test {
namespace {

constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;
constexpr std::uint64_t kRanges = 8;
constexpr std::uint64_t kSeeds = 2000;
constexpr std::uint64_t kRangeSeeds = (kSanitized ? 160 : kSeeds) / kRanges;

class Seeds : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, KeepEveryPromise) {
  const Range range = run_range(GetParam() * kRangeSeeds, kRangeSeeds, false);
  EXPECT_FALSE(range.found) << "repeat: build/release/bin/test_sim --seed " << range.seed;
}
INSTANTIATE_TEST_SUITE_P(Range, Seeds, ::testing::Range(std::uint64_t{0}, kRanges));

// 200 seeds of 512 ranks.
class ManyHosts : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(ManyHosts, KeepEveryPromise) {
  constexpr std::uint64_t kOfARange = kSanitized ? 1 : 25;
  const Range range = run_range(GetParam() * kOfARange, kOfARange, false, &run_many_hosts);
  EXPECT_FALSE(range.found) << "repeat: build/release/bin/test_sim --many-hosts --seed "
                            << range.seed;
}
INSTANTIATE_TEST_SUITE_P(Range, ManyHosts,
                         ::testing::Range(std::uint64_t{0}, kSanitized ? 1 : kRanges));

// Small trainings, in each of which some of the operations fail once, and each rank stops and dies
// before some of its turns; `./tandem trust --only each_fault` takes all of them.
class EachFault : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(EachFault, IsNamedAndGoneAfterTheNextStart) {
  const Range range = run_range(GetParam(), 1, false, &run_some_faults);
  EXPECT_FALSE(range.found) << "repeat: build/release/bin/test_sim --each-fault --seed "
                            << range.seed;
}
std::vector<std::uint64_t> quick_seeds() {
  return kSanitized ? std::vector<std::uint64_t>{5} : std::vector<std::uint64_t>{1, 4, 5};
}
INSTANTIATE_TEST_SUITE_P(Seed, EachFault, ::testing::ValuesIn(quick_seeds()));

TEST(OneSeed, IsOneExecution) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::uint64_t hash = run_seed(seed).hash;
    EXPECT_EQ(hash, run_seed(seed).hash) << "seed " << seed;
    hashes.insert(hash);
  }
  EXPECT_EQ(hashes.size(), 40U) << "other seeds are other executions";
}

// A planted bug may do anything to its process: a sanitizer would stop there and find nothing that
// we look for.
class PlantedBugs : public ::testing::TestWithParam<Bug> {};

TEST_P(PlantedBugs, AreFound) {
  if (kSanitized) {
    GTEST_SKIP() << "found without sanitizers";
  }
  g_planted_bug = GetParam();
  const Range range = run_range(0, kSeeds, true);
  g_planted_bug = Bug::kNone;
  EXPECT_TRUE(range.found) << name_of(GetParam()) << " was not found within " << kSeeds << " seeds";
  std::printf("%s: found by seed %llu\n", name_of(GetParam()),
              static_cast<unsigned long long>(range.seed));
}

std::vector<Bug> all_bugs() {
  std::vector<Bug> bugs;
  for (int i = 1; i < kBugs; ++i) {
    bugs.push_back(static_cast<Bug>(i));
  }
  return bugs;
}
INSTANTIATE_TEST_SUITE_P(Each, PlantedBugs, ::testing::ValuesIn(all_bugs()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tandem::sim_test
