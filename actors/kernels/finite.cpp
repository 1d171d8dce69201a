#include "actors/kernels/finite.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tandem {
namespace {

constexpr std::size_t kBlock = 4096;  // elements whose outcome is looked at together

/// NaN and infinity are the values whose exponent has all bits set.
template <class Bits>
bool is_bad(const std::byte* values, std::size_t i, Bits exponent) noexcept {
  Bits bits = 0;
  std::memcpy(&bits, values + i * sizeof(Bits), sizeof(Bits));
  return (bits & exponent) == exponent;
}

template <class Bits>
std::size_t first_bad(const std::byte* values, std::size_t count, Bits exponent) noexcept {
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, count);
    Bits bad = 0;  // without a branch, so that the compiler makes SIMD of it
    for (std::size_t i = begin; i < end; ++i) {
      bad = static_cast<Bits>(bad | static_cast<Bits>(is_bad(values, i, exponent) ? 1 : 0));
    }
    for (std::size_t i = begin; bad != 0 && i < end; ++i) {
      if (is_bad(values, i, exponent)) {
        return i;
      }
    }
  }
  return count;
}

}  // namespace

std::size_t first_not_finite(const void* values, DType type, std::size_t count) noexcept {
  const auto* bytes = static_cast<const std::byte*>(values);
  switch (type) {
    case DType::kF32:
      return first_bad<std::uint32_t>(bytes, count, 0x7F80'0000);
    case DType::kBF16:
      return first_bad<std::uint16_t>(bytes, count, 0x7F80);
    case DType::kF16:
      return first_bad<std::uint16_t>(bytes, count, 0x7C00);
  }
  return count;
}

}  // namespace tandem
