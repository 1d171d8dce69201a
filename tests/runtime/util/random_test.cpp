#include "runtime/util/random.hpp"

#include <array>

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Random, SameSeedSameNumbers) {
  Random a(7), b(7), c(8);
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    EXPECT_NE(value, c.next());
  }
  // The reference output of xoshiro256** seeded by splitmix64(0): the same on every machine.
  EXPECT_EQ(Random(0).next(), 0x99ec5f36cb75f2b4);
}

TEST(Random, AForkDependsOnSeedAndNameAlone) {
  Random used(7);
  used.next();
  EXPECT_EQ(Random(7).fork("disk").next(), used.fork("disk").next());
  EXPECT_NE(Random(7).fork("disk").next(), Random(7).fork("net").next());
  EXPECT_NE(Random(7).fork("disk").next(), Random(8).fork("disk").next());
  EXPECT_NE(Random(7).fork(1).next(), Random(7).fork(2).next());
}

TEST(Random, RangesAreFilledEvenly) {
  Random random(1);
  std::array<int, 10> counts{};
  int heads = 0;
  for (int i = 0; i < 100'000; ++i) {
    ++counts[random.below(10)];
    heads += random.chance(0.25) ? 1 : 0;
    const std::int64_t x = random.between(-3, 3);
    ASSERT_TRUE(x >= -3 && x <= 3);
    const double u = random.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 10'000, 500);
  }
  EXPECT_NEAR(heads, 25'000, 1'000);
}

}  // namespace
}  // namespace tandem
