// actors/kernels/exact_sum.hpp — the exact sum of non-negative doubles, the same for any order and
// partition.
//
// The sum is a fixed-point number wide enough for every double, in base-2^32 digits kept in 64-bit
// words. Adding a double adds its shifted mantissa to three limbs; merging two sums adds limb by
// limb. Both are integer additions, so they commute and associate: the global gradient norm has the
// same bits for every chunking, thread count and number of ranks. Any 64-bit integer all-reduce may
// sum the limbs() of up to 2^31 ranks.
// Invariant: carries are pending for at most kMaxPending additions, so that no limb can overflow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

class ExactSum {
 public:
  /// Digit 0 has weight 2^-1074 (the least double); 2^64 of the greatest doubles still fit. The
  /// last two limbs count the infinities and the NaNs that were added.
  static constexpr std::size_t kDigits = 68;
  static constexpr std::size_t kLimbs = kDigits + 2;

  /// Adds `value` >= 0, infinity or NaN. A negative value is a bug and ends the process.
  void add(double value) noexcept;

  /// Adds the sum of other elements.
  void merge(const ExactSum& other) noexcept;

  /// Returns the exact sum rounded to the nearest double (ties to even). Returns NaN if a NaN was
  /// added; else infinity if an infinity was added or the sum exceeds the greatest double.
  [[nodiscard]] double value() const noexcept;

  [[nodiscard]] bool is_finite() const noexcept { return limbs_[kInf] == 0 && limbs_[kNan] == 0; }

  /// Returns the limbs in canonical form (every digit below 2^32), in which ranks exchange sums and
  /// == compares them.
  [[nodiscard]] std::span<const std::uint64_t, kLimbs> limbs() noexcept;

  /// Returns the sum with these limbs, for example those of several ranks added up.
  [[nodiscard]] static ExactSum from_limbs(std::span<const std::uint64_t, kLimbs> limbs) noexcept;

  friend bool operator==(const ExactSum& a, const ExactSum& b) noexcept;

 private:
  static constexpr std::size_t kInf = kDigits;
  static constexpr std::size_t kNan = kDigits + 1;
  // A limb grows by less than 2^32 per addition of a double or of a canonical sum.
  static constexpr std::uint32_t kMaxPending = 1U << 30;

  void normalize() noexcept;

  std::array<std::uint64_t, kLimbs> limbs_{};
  std::uint32_t pending_ = 0;  // additions since the digits were canonical
};

}  // namespace tandem
