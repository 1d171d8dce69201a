// actors/kernels/update/packed-inl.hpp — vectors of split masters, of bf16 moments and of 8-bit
// codes, and the random bits of their rounding; state_layout.hpp says what the bits mean. Compiled
// once per SIMD target, and for one lane.
// Invariant: all operations are integer or exact, and work lane by lane, so no result depends on
// the width.
#if defined(TANDEM_ACTORS_KERNELS_PACKED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_PACKED_INL
#undef TANDEM_ACTORS_KERNELS_PACKED_INL
#else
#define TANDEM_ACTORS_KERNELS_PACKED_INL
#endif

#include <cstddef>
#include <cstdint>

#include "actors/kernels/state_layout.hpp"
#include "actors/kernels/update/stochastic_rounding-inl.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VU32 = hn::Vec<U32>;
using I32 = hn::RebindToSigned<F32>;
using U8 = hn::Rebind<std::uint8_t, F32>;

inline constexpr std::uint32_t kSignBit = 0x80000000;
inline constexpr std::uint32_t kMagnitude = 0x7fffffff;
inline constexpr std::uint32_t kInfinity = 0x7f800000;

/// Returns where `magnitude` is above `limit`. Magnitudes are below 2^31, so they are compared as
/// signed numbers.
HWY_INLINE hn::Mask<U32> above(VU32 magnitude, std::uint32_t limit) {
  const I32 di;
  return hn::RebindMask(
      U32(), hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int32_t>(limit))));
}

// --- split masters

/// Returns the bits of a master that are split. A NaN becomes quiet and has no remainder.
HWY_INLINE VU32 bits_to_split(VF32 master) {
  const U32 d;
  const auto bits = hn::BitCast(d, master);
  const auto quiet = hn::And(hn::Or(bits, hn::Set(d, 0x00400000)), hn::Set(d, 0xffff0000));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(master)), quiet, bits);
}

/// Returns where a master lies halfway between two weights and the lower one is even, so that it is
/// rounded down.
HWY_INLINE hn::Mask<U32> is_tie(VU32 bits) {
  const U32 d;
  return hn::Eq(hn::And(bits, hn::Set(d, 0x1ffff)), hn::Set(d, 0x8000));
}

/// Sets the upper half of `sum` to the bf16 weight, rounded as to_bits() does; the lower half of
/// `bits` is the remainder. Returns where the remainder is a tie (0x8000) whose weight was rounded
/// down. (Vectors of some targets cannot be members, so there is no struct of results.)
HWY_INLINE hn::Mask<U32> split_bits(VU32 bits, VU32& sum) {
  const U32 d;
  const auto tie = is_tie(bits);
  sum = hn::IfThenElse(tie, hn::Add(bits, hn::Set(d, 0x7fff)), hn::Add(bits, hn::Set(d, 0x8000)));
  return tie;
}

/// As split_bits(), but changes such a tie by one unit instead of returning it. `bits` gets the
/// remainder.
HWY_INLINE void split_bits_near(VU32& bits, VU32& sum) {
  const U32 d;
  const auto tie = is_tie(bits);
  bits = hn::IfThenElse(tie, hn::Sub(bits, hn::Set(d, 1)), bits);
  sum = hn::Add(bits, hn::Set(d, 0x8000));
}

/// The number that join_master() adds where there is no tie, to undo the offset of the remainder's
/// sign. Where there is a tie, the number is 0x10000 greater.
inline constexpr std::uint32_t kNoTie = 0xffff8000;

/// Returns the master of a weight (upper half of `halves`) and its signed remainder (lower half).
HWY_INLINE VF32 join_master(VU32 halves, VU32 ties) {
  const U32 d;
  return hn::BitCast(F32(), hn::Add(hn::Xor(halves, hn::Set(d, 0x8000)), ties));
}

/// Take the ties of a split master out of the sign of the moment that stores them, and put them
/// back. The first returns join_master()'s `ties`.
HWY_INLINE VU32 take_ties(VF32& moment) {
  const U32 d;
  const auto ties = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(I32(), moment)));
  moment = hn::Abs(moment);
  return hn::Xor(hn::And(ties, hn::Set(d, 0xffff0000)), hn::Set(d, kNoTie));
}

HWY_INLINE VF32 put_tie(hn::Mask<U32> tie, VF32 moment) {
  const U32 d;
  const auto magnitude = hn::And(hn::BitCast(d, moment), hn::Set(d, kMagnitude));
  return hn::BitCast(F32(), hn::Or(magnitude, hn::IfThenElseZero(tie, hn::Set(d, kSignBit))));
}

// --- random bits

/// 32 random bits per element: a Weyl sequence over positions, then a bijective mixer.
struct RoundingBits {
  static constexpr std::uint32_t kStep = kRoundingStep;
  std::uint32_t first;

  HWY_INLINE RoundingBits(std::uint32_t key, std::uint64_t position)
      : first(key + static_cast<std::uint32_t>(position) * kStep) {}

  /// Returns the bits for a position that is `elements` higher.
  [[nodiscard]] HWY_INLINE RoundingBits from(std::size_t elements) const {
    RoundingBits moved = *this;
    moved.first += static_cast<std::uint32_t>(elements) * kStep;
    return moved;
  }
  /// Returns the bits for the elements from `i` on, counted from the position.
  [[nodiscard]] HWY_INLINE VU32 at(std::size_t i) const { return mixed_bits(U32(), unmixed(i)); }
  /// Returns the numbers that are mixed to give those bits; next() continues from them.
  [[nodiscard]] HWY_INLINE VU32 unmixed(std::size_t i) const {
    const U32 d;
    const std::uint32_t scalar = first + static_cast<std::uint32_t>(i) * kStep;
    return hn::Add(hn::Set(d, scalar), hn::Mul(hn::Iota(d, 0), hn::Set(d, kStep)));
  }
  /// Returns the bits of the vector at `unmixed`, and advances `unmixed` to the next vector.
  [[nodiscard]] static HWY_INLINE VU32 next(VU32& unmixed) {
    const U32 d;
    const auto random = mixed_bits(d, unmixed);
    unmixed = hn::Add(unmixed, hn::Set(d, static_cast<std::uint32_t>(hn::Lanes(d)) * kStep));
    return random;
  }
};

/// Returns the 16 random bits that belong to a state array.
template <std::size_t kArray>
HWY_INLINE VU32 bits_of_array(VU32 rounding_bits) {
  if constexpr (kArray == 0) {
    return hn::And(rounding_bits, hn::Set(U32(), 0xffff));
  } else {
    return hn::ShiftRight<16>(rounding_bits);
  }
}

// --- bf16 moments

/// Bits of the greatest magnitude that is rounded: bf16's greatest number is the next one.
inline constexpr std::uint32_t kGreatestRounded = 0x7f7effff;

/// Converts fp32 to bf16 bits in the upper halves, rounded up with a probability equal to the
/// fraction that is cut off. From bf16's greatest number on nothing is rounded, so no number
/// becomes infinity, and infinity and NaN (quiet, as arithmetic leaves it) stay.
HWY_INLINE VU32 round_to_bf16(VF32 value, VU32 random16) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
  const auto keeps = above(hn::And(bits, hn::Set(d, kMagnitude)), kGreatestRounded);
  return hn::Add(bits, hn::IfThenZeroElse(keeps, random16));
}

/// The same for values that are never negative: a value above 0 stays above 0.
HWY_INLINE VU32 round_to_bf16_above_zero(VF32 value, VU32 random16) {
  const U32 d;
  const auto positive = above(hn::BitCast(d, value), 0);
  const auto least = hn::IfThenElseZero(positive, hn::Set(d, 0x10000));
  return hn::Max(round_to_bf16(value, random16), least);
}

// --- 8-bit codes: the upper bits of an fp32 magnitude, counted from the group's least binade

/// If kSigned, a code has 1 bit of sign, 4 of exponent and 3 of mantissa; else 5 of exponent and 3
/// of mantissa.
template <bool kSigned>
struct Code {
  static constexpr std::uint32_t kBinades = kSigned ? 16 : 32;
  static constexpr std::int32_t kGreatest = kSigned ? 127 : 255;

  /// Returns the value that the code 0 would stand for, in steps of 2^20 of fp32's bits.
  static HWY_INLINE std::uint32_t base(std::uint8_t scale) {
    return scale < kBinades ? 0 : (scale + 1 - kBinades) * 8;
  }

  /// Returns the exponent of a scale group whose greatest magnitude has the bits `greatest`.
  static HWY_INLINE std::uint8_t scale(std::uint32_t greatest) {
    if (greatest >= kInfinity) {
      return 255;
    }
    // A value above a binade's last code may be rounded into the next.
    const std::uint32_t exponent = (greatest + 0xfffff) >> 23;
    return static_cast<std::uint8_t>(exponent > 254 ? 254 : exponent);
  }

  /// Returns whether every magnitude from `least` on, in a scale group with this exponent, has an
  /// ordinary code: neither below the code 1 nor above the greatest.
  static HWY_INLINE bool is_ordinary(std::uint8_t scale, std::uint32_t least) {
    return scale < 254 && least >= (base(scale) + 1) << 20;
  }

  static HWY_INLINE VF32 load(const std::uint8_t* from, std::uint8_t scale) {
    const U32 d;
    const I32 di;
    const bool lost = scale == 255;
    const auto poison = hn::Set(d, lost ? 0x7fc00000U : 0U);
    const auto code = hn::PromoteTo(d, hn::LoadU(U8(), from));
    auto steps = hn::ShiftLeft<20>(code);
    auto is_zero = hn::Eq(code, hn::Zero(d));
    if constexpr (kSigned) {
      const auto up = hn::BitCast(di, hn::ShiftLeft<24>(code));
      steps = hn::And(hn::BitCast(d, hn::ShiftRight<4>(up)), hn::Set(d, 0x87ffffff));
      is_zero = hn::Eq(hn::And(code, hn::Set(d, 0x7f)), hn::Zero(d));
    }
    // The sum stays below the sign, and a NaN's bits are those of the code.
    const auto bits = hn::Or(steps, poison);
    const auto first = hn::Set(d, lost ? 0U : base(scale) << 20);
    return hn::BitCast(F32(), hn::IfThenElse(is_zero, bits, hn::Add(bits, first)));
  }

  /// Returns the code, rounded up with a probability equal to the fraction that is cut off. A value
  /// below the code 1 becomes, if kSigned, 1 or 0 by the same rule; else 1, unless the value is 0.
  /// kOrdinary: is_ordinary() was true.
  template <bool kOrdinary>
  static HWY_INLINE VU32 of(VF32 value, VU32 random16, std::uint8_t scale) {
    const F32 df;
    const U32 d;
    const I32 di;
    const auto bits = hn::BitCast(d, value);
    const auto magnitude = kOrdinary && !kSigned ? bits : hn::And(bits, hn::Set(d, kMagnitude));
    const auto steps = hn::ShiftRight<20>(hn::Add(magnitude, hn::ShiftLeft<4>(random16)));
    auto code = hn::Sub(steps, hn::Set(d, base(scale)));
    if constexpr (!kOrdinary) {
      const auto within = hn::Max(hn::BitCast(di, code), hn::Set(di, 1));
      code = hn::BitCast(d, hn::Min(within, hn::Set(di, kGreatest)));
      const std::uint32_t least = (base(scale) + 1) << 20;
      if constexpr (kSigned) {
        const auto threshold = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, random16)),
                                       hn::BitCast(df, hn::Set(d, least)));
        const auto scaled = hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 65536.0F));
        const auto one =
            hn::IfThenElseZero(hn::RebindMask(d, hn::Gt(scaled, threshold)), hn::Set(d, 1));
        code = hn::IfThenElse(above(magnitude, least - 1), code, one);
      } else {
        code = hn::IfThenElseZero(above(magnitude, 0), code);
      }
    }
    return kSigned ? hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(d, 0x80))) : code;
  }
};

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
