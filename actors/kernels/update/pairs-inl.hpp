// actors/kernels/update/pairs-inl.hpp — vectors of 16-bit numbers in memory as two vectors of
// 32-bit ones; compiled once per SIMD target.
// Invariant: bits are only moved; no number changes.
#if defined(TANDEM_ACTORS_KERNELS_PAIRS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_PAIRS_INL
#undef TANDEM_ACTORS_KERNELS_PAIRS_INL
#else
#define TANDEM_ACTORS_KERNELS_PAIRS_INL
#endif

#include <cstddef>
#include <cstdint>

#include "actors/kernels/update/packed-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

// Two vectors of 32-bit numbers fill one vector of 16-bit numbers. Handling them together saves
// most of the shifts and shuffles.

template <bool kStream, class D16>
HWY_INLINE void store_words(hn::Vec<D16> words, D16 d16, std::uint16_t* to) {
  if constexpr (kStream) {
    hn::Stream(words, d16, to);
  } else {
    hn::StoreU(words, d16, to);
  }
}

/// Stores the upper halves of the lanes of `a`, then those of `b`.
template <bool kStream>
HWY_INLINE void store_upper(VU32 a, VU32 b, std::uint16_t* to) {
  const hn::Repartition<std::uint16_t, U32> d;
  store_words<kStream>(hn::ConcatOdd(d, hn::BitCast(d, b), hn::BitCast(d, a)), d, to);
}

template <bool kStream>
HWY_INLINE void store_lower(VU32 a, VU32 b, std::uint16_t* to) {
  const hn::Repartition<std::uint16_t, U32> d;
  store_words<kStream>(hn::ConcatEven(d, hn::BitCast(d, b), hn::BitCast(d, a)), d, to);
}

/// bits_to_split() for two vectors. NaNs are rare, so both vectors are checked at once, by their
/// sum. Infinities of opposite signs also give a NaN; then the longer way gives the same bits.
HWY_INLINE void bits_to_split(VF32 a, VF32 b, VU32& bits_a, VU32& bits_b) {
  const U32 d;
  const F32 df;
  if (HWY_LIKELY(hn::AllFalse(df, hn::IsNaN(hn::Add(a, b))))) {
    bits_a = hn::BitCast(d, a);
    bits_b = hn::BitCast(d, b);
  } else {
    bits_a = bits_to_split(a);
    bits_b = bits_to_split(b);
  }
}

HWY_INLINE void load_pair(const float* from, VF32& a, VF32& b) {
  const F32 d;
  a = hn::LoadU(d, from);
  b = hn::LoadU(d, from + hn::Lanes(d));
}

#if HWY_TARGET == HWY_AVX3

/// Indices that interleave the words of two vectors, `low` (0 to 31) and `high` (32 to 63).
alignas(64) inline constexpr std::uint16_t kFirstHalf[32] = {
    0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) inline constexpr std::uint16_t kSecondHalf[32] = {
    16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
    24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

HWY_INLINE void interleave(__m512i low, __m512i high, VU32& a, VU32& b) {
  a = VU32{_mm512_permutex2var_epi16(low, _mm512_load_si512(kFirstHalf), high)};
  b = VU32{_mm512_permutex2var_epi16(low, _mm512_load_si512(kSecondHalf), high)};
}

HWY_INLINE void load_pair(const Bf16Bits* from, VF32& a, VF32& b) {
  VU32 x, y;
  interleave(_mm512_setzero_si512(), _mm512_loadu_si512(from), x, y);
  a = hn::BitCast(F32(), x);
  b = hn::BitCast(F32(), y);
}

HWY_INLINE void load_halves(const Bf16Bits* high, const std::uint16_t* low, VU32& a, VU32& b) {
  interleave(_mm512_loadu_si512(low), _mm512_loadu_si512(high), a, b);
}

/// Joins weights with their signed remainders; there are no ties.
HWY_INLINE void load_masters(const Bf16Bits* high, const std::uint16_t* low, VF32& a, VF32& b) {
  const __m512i remainder = _mm512_loadu_si512(low);
  VU32 x, y;
  interleave(remainder,
             _mm512_add_epi16(_mm512_loadu_si512(high), _mm512_srai_epi16(remainder, 15)), x, y);
  a = hn::BitCast(F32(), x);
  b = hn::BitCast(F32(), y);
}

#else

HWY_INLINE void load_pair(const Bf16Bits* from, VF32& a, VF32& b) {
  const F32 d;
  a = load_f32(d, from);
  b = load_f32(d, from + hn::Lanes(d));
}

/// Each lane gets a weight in its upper half and the remainder in its lower half.
HWY_INLINE void load_halves(const Bf16Bits* high, const std::uint16_t* low, VU32& a, VU32& b) {
  const U32 d;
  const std::size_t lanes = hn::Lanes(d);
  const auto words = [d](const std::uint16_t* from)
                         HWY_ATTR { return hn::PromoteTo(d, hn::LoadU(U16<F32>(), from)); };
  a = hn::Or(hn::ShiftLeft<16>(words(&high->bits)), words(low));
  b = hn::Or(hn::ShiftLeft<16>(words(&high[lanes].bits)), words(low + lanes));
}

HWY_INLINE void load_masters(const Bf16Bits* high, const std::uint16_t* low, VF32& a, VF32& b) {
  const auto no_tie = hn::Set(U32(), kNoTie);
  VU32 x, y;
  load_halves(high, low, x, y);
  a = join_master(x, no_tie);
  b = join_master(y, no_tie);
}

#endif

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
