// NaN and infinity are found in every type, at every place.
#include "actors/kernels/finite.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace tandem {
namespace {

template <class Bits>
void expect_found(DType type, std::initializer_list<Bits> bad, std::initializer_list<Bits> good) {
  constexpr std::size_t kCount = 10'000;
  std::vector<Bits> values(kCount + 1, *good.begin());
  for (const std::size_t at : {std::size_t{0}, std::size_t{4095}, std::size_t{4096}, kCount - 1}) {
    for (const Bits value : bad) {
      values[at] = value;
      EXPECT_EQ(first_not_finite(values.data(), type, kCount), at) << std::hex << value;
    }
    for (const Bits value : good) {
      values[at] = value;
      EXPECT_EQ(first_not_finite(values.data(), type, kCount), kCount) << std::hex << value;
    }
  }
  values[kCount] = *bad.begin();
  EXPECT_EQ(first_not_finite(values.data(), type, kCount), kCount) << "behind the end";
  const auto* unaligned = reinterpret_cast<const std::byte*>(values.data());
  EXPECT_EQ(first_not_finite(unaligned, type, 0), 0U);
}

TEST(Finite, FindsWhatIsNoNumber) {
  expect_found<std::uint32_t>(DType::kF32, {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001},
                              {0x3F800000, 0x7F7FFFFF, 0x80000001, 0});
  expect_found<std::uint16_t>(DType::kBF16, {0x7F80, 0xFF80, 0x7FC0, 0x7F81},
                              {0x3F80, 0x7F7F, 0x8001, 0});
  expect_found<std::uint16_t>(DType::kF16, {0x7C00, 0xFC00, 0x7E00, 0x7C01},
                              {0x3C00, 0x7BFF, 0x8001, 0});
}

}  // namespace
}  // namespace tandem
