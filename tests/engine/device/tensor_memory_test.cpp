#include "engine/tensors/tensor_memory.hpp"

#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class TensorMemoryTest : public ::testing::Test {
 protected:
  TensorMemory memory{256 * kMiB, *c10::GetDefaultCPUAllocator()};

  [[nodiscard]] std::size_t used_mib() const { return memory.used_bytes() / kMiB; }
};

TEST_F(TensorMemoryTest, AFreedBlockIsUsedAgainByOneOfItsSize) {
  c10::DataPtr first = memory.allocate(32 * kMiB);
  const c10::DataPtr behind = memory.allocate(32 * kMiB);
  const void* const place = first.get();
  for (int i = 0; i < 10; ++i) {
    first.clear();
    first = memory.allocate(32 * kMiB);
    EXPECT_EQ(first.get(), place);
  }
  EXPECT_EQ(used_mib(), 64);
}

TEST_F(TensorMemoryTest, FreeNeighboursAreOne) {
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 6; ++i) {
    blocks.push_back(memory.allocate(16 * kMiB));
  }
  blocks[1].clear();
  blocks[3].clear();
  blocks[2].clear();  // between two free ones
  const c10::DataPtr large = memory.allocate(48 * kMiB);
  EXPECT_EQ(used_mib(), 96);
  blocks[5].clear();  // the last: what follows begins there
  const c10::DataPtr last = memory.allocate(32 * kMiB);
  EXPECT_EQ(used_mib(), 112);
}

TEST_F(TensorMemoryTest, TheSmallestThatFitsIsTaken) {
  c10::DataPtr wide = memory.allocate(32 * kMiB);
  const c10::DataPtr one = memory.allocate(2 * kMiB);
  c10::DataPtr narrow = memory.allocate(16 * kMiB);
  const c10::DataPtr two = memory.allocate(2 * kMiB);
  const void* const place = narrow.get();
  wide.clear();
  narrow.clear();
  const c10::DataPtr taken = memory.allocate(16 * kMiB);
  EXPECT_EQ(taken.get(), place);
}

TEST_F(TensorMemoryTest, OtherBlocksAreTheOtherAllocators) {
  const c10::DataPtr small = memory.allocate(TensorMemory::kLeastBytes - 1);
  const c10::DataPtr none = memory.allocate(0);
  c10::DataPtr all = memory.allocate(200 * kMiB);
  EXPECT_EQ(used_mib(), 200);
  c10::DataPtr more = memory.allocate(100 * kMiB);  // for which the range has no room
  ASSERT_NE(more.get(), nullptr);
  std::memset(more.get(), 1, 100 * kMiB);
  EXPECT_EQ(used_mib(), 200);
  more.clear();
  all.clear();
  more = memory.allocate(240 * kMiB);
  EXPECT_EQ(used_mib(), 240);
  EXPECT_EQ(none.get(), nullptr);
  TensorMemory shorter(SIZE_MAX / 2, *c10::GetDefaultCPUAllocator());  // no system has that
  const c10::DataPtr in_half = shorter.allocate(2 * kMiB);
  EXPECT_GT(shorter.used_bytes(), 2 * kMiB);
  TensorMemory without(kMiB, *c10::GetDefaultCPUAllocator());  // too short to be worth anything
  const c10::DataPtr there = without.allocate(2 * kMiB);
  ASSERT_NE(there.get(), nullptr);
  EXPECT_EQ(without.used_bytes(), 0);
}

TEST_F(TensorMemoryTest, LibrariesHaveMemoryWithoutADataPtr) {
  use_tensor_memory();
  c10::Allocator& of_process = *c10::GetCPUAllocator();
  ASSERT_NE(&of_process, c10::GetDefaultCPUAllocator());
  for (const std::size_t bytes : {std::size_t{100}, 3 * kMiB, 30 * kMiB}) {
    void* const taken = of_process.raw_allocate(bytes);
    std::memset(taken, 1, bytes);
    of_process.raw_deallocate(taken);
  }
}

TEST_F(TensorMemoryTest, BlocksKeepTheirBytesAndNoGapIsLost) {
  std::mt19937 draw(1);
  std::map<int, std::pair<c10::DataPtr, std::size_t>> blocks;
  for (int i = 0; i < 2000; ++i) {
    if (blocks.size() > 12 || (!blocks.empty() && draw() % 2 == 0)) {
      const auto gone =
          std::next(blocks.begin(), static_cast<std::ptrdiff_t>(draw() % blocks.size()));
      const auto& [block, bytes] = gone->second;
      const auto* const data = static_cast<const unsigned char*>(block.get());
      EXPECT_EQ(data[0], gone->first % 251);
      EXPECT_EQ(data[bytes - 1], gone->first % 251);
      blocks.erase(gone);
    } else {
      const std::size_t bytes = kMiB + draw() % (8 * kMiB);
      c10::DataPtr block = memory.allocate(bytes);
      auto* const data = static_cast<unsigned char*>(block.get());
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0);
      data[0] = data[bytes - 1] = static_cast<unsigned char>(i % 251);
      blocks.emplace(i, std::pair(std::move(block), bytes));
    }
  }
  blocks.clear();
  const std::size_t before = memory.used_bytes();
  const c10::DataPtr all = memory.allocate(before - 128);  // one free block again
  EXPECT_EQ(memory.used_bytes(), before);
}

}  // namespace
}  // namespace tandem
