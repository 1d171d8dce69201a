// actors/gpu/norm_limbs.hpp — the arithmetic of an exact norm that the CPU and the GPU share:
// C++17, for nvcc as well.
//
// The sum of squares of a tile of 512 elements is computed in 32 lanes of double, with element i in
// lane i mod 32, and the lanes are added as a tree: that is one warp's work. A tile's sum is then
// added to the digits of an ExactSum. These are integers, so atomics in any order give the same
// limbs.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif

namespace tandem::norm {

inline constexpr unsigned kBlockElements = 512;
inline constexpr unsigned kLanes = 32;
inline constexpr unsigned kDigits = 68;  // as ExactSum
inline constexpr unsigned kInfinities = kDigits;
inline constexpr unsigned kNans = kDigits + 1;
inline constexpr unsigned kSumLimbs = kDigits + 2;
inline constexpr unsigned kFirstBad = kSumLimbs;  // index of the first bad element; all ones: none
inline constexpr unsigned kLimbs = kSumLimbs + 1;

/// The numbers to add to limbs index, index + 1 and index + 2 of an exact sum, for a non-negative
/// double, an infinity or a NaN.
struct Addends {
  unsigned index = 0;
  unsigned count = 0;  // how many of the three are used
  std::uint64_t limbs[3] = {0, 0, 0};
};

TANDEM_HOST_DEVICE inline Addends addends_of(double value) {
  std::uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  const std::uint64_t exponent = bits >> 52 & 0x7ff;
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  Addends made;
  if (exponent == 0x7ff) {
    made.index = mantissa == 0 ? kInfinities : kNans;
    made.count = 1;
    made.limbs[0] = 1;
    return made;
  }
  const std::uint64_t position = exponent == 0 ? 0 : exponent - 1;
  mantissa |= exponent == 0 ? 0 : std::uint64_t{1} << 52;
  const auto shift = static_cast<unsigned>(position % 32);
  const std::uint64_t low = (mantissa & 0xffffffffU) << shift;
  const std::uint64_t high = (mantissa >> 32) << shift;
  made.index = static_cast<unsigned>(position / 32);
  made.count = 3;
  made.limbs[0] = low & 0xffffffffU;
  made.limbs[1] = (low >> 32) + (high & 0xffffffffU);
  made.limbs[2] = high >> 32;
  return made;
}

/// Returns whether `value` is neither NaN nor infinity.
TANDEM_HOST_DEVICE inline bool is_finite(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return (bits & 0x7f800000U) != 0x7f800000U;
}

}  // namespace tandem::norm
