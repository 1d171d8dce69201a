// tests/actors/kernels/float16_reference.hpp — the 16-bit floats one value at a time, by arithmetic
// on values and not by the kernels' bit tricks. NaN stays NaN: quiet bit set, upper payload bits
// kept.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::test {

/// To nearest even by comparing the distances to both neighbours.
inline std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t low = bits & 0xffff;
  const auto down = static_cast<std::uint16_t>(bits >> 16);
  if (!std::isfinite(value)) {
    return std::isnan(value) ? static_cast<std::uint16_t>(down | 0x40) : down;
  }
  if (low < 0x8000 || (low == 0x8000 && down % 2 == 0)) {
    return down;
  }
  return static_cast<std::uint16_t>(down + 1);  // carries into the exponent, up to infinity
}

inline float f32_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

inline std::uint16_t f16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const double magnitude = std::abs(static_cast<double>(value));
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7e00 | (bits >> 13 & 0x3ff));
  }
  if (magnitude >= 65520) {  // half way between the greatest number and the next that would be one
    return static_cast<std::uint16_t>(sign | 0x7c00);
  }
  // The value in units of its last place; fp16 has 11 bits, and denormals the least normals' unit.
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // 1024 units are the exponent's own step, so that a rounding up to the next power carries by
  // itself.
  const int code = (exponent + 14) * 1024 + units;
  return static_cast<std::uint16_t>(sign | code);
}

inline float f32_of_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int digits = bits & 0x3ff;
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  if (exponent == 31) {
    const std::uint32_t payload =
        digits == 0 ? 0 : 0x400000U | static_cast<std::uint32_t>(digits) << 13;
    return std::bit_cast<float>(sign | 0x7f800000U | payload);
  }
  const double magnitude =
      exponent == 0 ? std::ldexp(digits, -24) : std::ldexp(1024 + digits, exponent - 25);
  return std::copysign(static_cast<float>(magnitude), sign != 0 ? -1.0F : 1.0F);
}

}  // namespace tandem::test
