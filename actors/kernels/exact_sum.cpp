#include "actors/kernels/exact_sum.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "runtime/util/check.hpp"

namespace tandem {

namespace {
constexpr std::uint64_t kDigitMask = 0xffffffffU;
constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMantissaMask = (std::uint64_t{1} << kMantissaBits) - 1;
constexpr std::uint64_t kExponentMax = 0x7ff;
}  // namespace

void ExactSum::add(double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t exponent = (bits >> kMantissaBits) & kExponentMax;
  std::uint64_t mantissa = bits & kMantissaMask;
  if (exponent == kExponentMax) {
    limbs_[mantissa == 0 ? kInf : kNan] += 1;
    return;
  }
  TANDEM_CHECK((bits >> 63) == 0 || (bits << 1) == 0, "an exact sum takes non-negative values");
  // Subnormals (exponent 0) share the weight of exponent 1 and have no hidden bit.
  const std::uint64_t position = exponent == 0 ? 0 : exponent - 1;
  mantissa |= exponent == 0 ? 0 : std::uint64_t{1} << kMantissaBits;
  const std::size_t digit = position / 32;
  const unsigned shift = position % 32;
  const std::uint64_t low = (mantissa & kDigitMask) << shift;
  const std::uint64_t high = (mantissa >> 32) << shift;
  limbs_[digit] += low & kDigitMask;
  limbs_[digit + 1] += (low >> 32) + (high & kDigitMask);  // below 2^33
  limbs_[digit + 2] += high >> 32;
  pending_ += 2;
  if (pending_ >= kMaxPending) {
    normalize();
  }
}

void ExactSum::merge(const ExactSum& other) noexcept {
  for (std::size_t i = 0; i < kLimbs; ++i) {
    limbs_[i] += other.limbs_[i];
  }
  pending_ += other.pending_ + 1;
  if (pending_ >= kMaxPending) {
    normalize();
  }
}

void ExactSum::normalize() noexcept {
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < kDigits; ++i) {
    const std::uint64_t sum = limbs_[i] + carry;
    limbs_[i] = sum & kDigitMask;
    carry = sum >> 32;
  }
  TANDEM_CHECK(carry == 0, "the exact sum has room for every sum of doubles");
  pending_ = 0;
}

std::span<const std::uint64_t, ExactSum::kLimbs> ExactSum::limbs() noexcept {
  normalize();
  return limbs_;
}

ExactSum ExactSum::from_limbs(std::span<const std::uint64_t, kLimbs> limbs) noexcept {
  ExactSum sum;
  for (std::size_t i = 0; i < kLimbs; ++i) {
    sum.limbs_[i] = limbs[i];
  }
  sum.normalize();
  return sum;
}

bool operator==(const ExactSum& a, const ExactSum& b) noexcept {
  ExactSum x = a;
  ExactSum y = b;
  x.normalize();
  y.normalize();
  return x.limbs_ == y.limbs_;
}

double ExactSum::value() const noexcept {
  if (limbs_[kNan] != 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (limbs_[kInf] != 0) {
    return std::numeric_limits<double>::infinity();
  }
  ExactSum canonical = *this;
  canonical.normalize();
  const auto& digits = canonical.limbs_;
  std::size_t top = kDigits;
  while (top > 0 && digits[top - 1] == 0) {
    --top;
  }
  if (top == 0) {
    return 0.0;
  }
  // The top 64 bits, from the highest set bit down, and whether anything below them is set.
  const auto digit = [&digits](std::ptrdiff_t i) { return i >= 0 ? digits[i] : 0; };
  const auto high = static_cast<std::ptrdiff_t>(top) - 1;
  const int lead = std::countl_zero(static_cast<std::uint32_t>(digits[high]));
  std::uint64_t head = digits[high] << 32 | digit(high - 1);
  std::uint64_t rest = digit(high - 2);
  if (lead > 0) {
    head = head << lead | rest >> (32 - lead);
    rest = (rest << lead) & kDigitMask;
  }
  bool sticky = rest != 0;
  for (std::ptrdiff_t i = high - 3; i >= 0 && !sticky; --i) {
    sticky = digits[i] != 0;
  }
  // head * 2^weight is the sum cut to 64 bits. Keep 53 of them, fewer where the result is
  // subnormal.
  const int weight = static_cast<int>(high) * 32 - 32 - lead - 1074;
  constexpr int kLeastWeight = -1074;
  int drop = 64 - 53;
  if (weight + drop < kLeastWeight) {
    drop = kLeastWeight - weight;  // at most 63: the highest bit has a weight of at least 2^-1074
  }
  std::uint64_t kept = head >> drop;
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  const std::uint64_t cut = head & (half * 2 - 1);
  if (cut > half || (cut == half && (sticky || (kept & 1) != 0))) {
    kept += 1;
  }
  return std::ldexp(static_cast<double>(kept), weight + drop);
}

}  // namespace tandem
