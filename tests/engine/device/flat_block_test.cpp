// A unit's tensors lie alike in every slot of a device: a matmul whose operands are aligned
// otherwise can be another one there, with other bits.
#include <gtest/gtest.h>

#include "engine/tensors/unit.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kElements = 64;
alignas(256) std::byte slot[kElements * sizeof(float) + 256];

TEST(FlatBlockDeathTest, OfADeviceIsBoundToMultiplesOf256BytesAlone) {
  const at::Device device(at::kCUDA, 0);  // nothing is computed there
  FlatBlock block(kElements, DType::kF32, device);
  for (const std::size_t offset : {4, 16, 64, 128, 255}) {
    EXPECT_DEATH(block.bind(slot + offset), "aligned alike in every slot") << offset;
  }
  block.bind(slot);
  EXPECT_EQ(block.data(), slot);
  block.bind(slot + 256);
  EXPECT_EQ(block.data(), slot + 256);
}

TEST(FlatBlock, OfTheHostIsBoundAnywhere) {
  FlatBlock block(kElements, DType::kF32, at::kCPU);
  block.bind(slot + 64);
  EXPECT_EQ(block.data(), slot + 64);
}

}  // namespace
}  // namespace tandem
