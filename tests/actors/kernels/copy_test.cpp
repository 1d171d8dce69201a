// tests/actors/kernels/copy_test.cpp — copies past the caches: every length and both ends at every
// alignment, nothing beside them.
#include "actors/kernels/copy.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Copy, PastTheCachesWritesItsBytesAndNoOthers) {
  constexpr std::size_t kLongest = 200;
  constexpr std::uint8_t kUntouched = 0xee;
  std::vector<std::uint8_t> source(kLongest + 64);
  for (std::size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<std::uint8_t>(i % 199);
  }
  for (std::size_t from = 0; from < 64; from += 7) {
    for (std::size_t to = 0; to < 64; ++to) {
      for (std::size_t bytes = 0; bytes <= kLongest; bytes += bytes < 70 ? 1 : 13) {
        std::vector<std::uint8_t> target(to + bytes + 64, kUntouched);
        copy_past_caches(target.data() + to, source.data() + from, bytes);
        for (std::size_t i = 0; i < target.size(); ++i) {
          const bool inside = i >= to && i < to + bytes;
          ASSERT_EQ(target[i], inside ? source[from + i - to] : kUntouched)
              << "byte " << i << " of " << bytes << " from " << from << " to " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
