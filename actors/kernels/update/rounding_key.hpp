// actors/kernels/update/rounding_key.hpp — the keys of stochastic rounding, which map positions to
// random bits. C++17, for nvcc as well.
//
// An element's 32 random bits are computed from a key and the lower half of its position in the
// model (packed-inl.hpp); the key contains the upper half, the seed and the step.
// Invariant: the bits do not depend on chunks, ranks or processors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem {

/// Returns splitmix64's bijection of 64 bits, which leaves no pattern of `x` visible.
inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
  x = (x ^ x >> 27) * 0x94d049bb133111ebU;
  return x ^ x >> 31;
}

/// Calls each(key, first, count) for each part of [begin, end) whose elements have the same key.
/// `position` is the position of element 0.
template <class Each>
void for_rounding_keys(std::uint64_t rounding_bits, std::uint64_t position, std::size_t begin,
                       std::size_t end, Each each) {
  while (begin < end) {
    const std::uint64_t first = position + begin;
    const std::uint64_t room = (std::uint64_t{1} << 32) - (first & 0xffffffffU);
    const std::size_t count = std::min<std::uint64_t>(end - begin, room);
    each(static_cast<std::uint32_t>(mixed(rounding_bits ^ mixed(first >> 32))), begin, count);
    begin += count;
  }
}

}  // namespace tandem
