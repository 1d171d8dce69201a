#include "runtime/device/populate.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace tandem {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = std::size_t{96} << 20;

/// Memory without pages so far.
struct Mapping {
  std::span<std::byte> memory{
      static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
      kBytes};
  ~Mapping() { ::munmap(memory.data(), kBytes); }

  [[nodiscard]] std::size_t pages() const {
    std::vector<unsigned char> there(kBytes / kPage);
    EXPECT_EQ(::mincore(memory.data(), kBytes, there.data()), 0);
    return static_cast<std::size_t>(
        std::ranges::count_if(there, [](unsigned char page) { return (page & 1) != 0; }));
  }
};

TEST(Populate, GivesEveryPageOnceAndKeepsTheContent) {
  for (const int threads : {1, 3}) {
    for (const int node : {-1, 0, 5000}) {
      Mapping mapping;
      EXPECT_EQ(mapping.pages(), 0U);
      mapping.memory[kBytes / 2] = std::byte{7};
      populate(mapping.memory, node, threads);
      EXPECT_EQ(mapping.pages(), kBytes / kPage);
      EXPECT_EQ(mapping.memory[kBytes / 2], std::byte{7});
      EXPECT_EQ(mapping.memory[kBytes - 1], std::byte{0});
    }
  }
}

TEST(Populate, TakesRangesThatAreNoPages) {
  Mapping mapping;
  populate(mapping.memory.subspan(100, 50));
  populate({});
  EXPECT_EQ(mapping.pages(), 0U);
  populate(mapping.memory.subspan(100, 3 * kPage));
  EXPECT_GE(mapping.pages(), 2U);
}

TEST(Populate, FillsWithZerosUpToTheEnd) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, kBytes - 3}) {
    std::vector<std::byte> memory(bytes + 1, std::byte{9});
    fill_with_zeros(std::span(memory).first(bytes), 3);
    EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(memory, std::byte{0})), bytes);
    EXPECT_EQ(memory[bytes], std::byte{9});
  }
}

}  // namespace
}  // namespace tandem
