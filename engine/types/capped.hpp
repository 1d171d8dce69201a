// engine/types/capped.hpp — sums and products of sizes that stop at the greatest number instead of
// wrapping around: so sizes that a file names add up to too much, never to a negative number. Any
// thread.
#pragma once

#include <cstdint>
#include <limits>

namespace tandem {

/// Returns a + b, or the least or greatest 64-bit number if the sum is outside of that range.
[[nodiscard]] inline std::int64_t sum_capped(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) {
    return sum;
  }
  return b > 0 ? std::numeric_limits<std::int64_t>::max()
               : std::numeric_limits<std::int64_t>::min();
}

/// Returns a * b of sizes, which are at least 0, limited in the same way.
[[nodiscard]] inline std::int64_t product_capped(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

}  // namespace tandem
