// actors/kernels/update/codes-inl.hpp — moments as 8-bit codes in memory, two and four vectors at a
// time; compiled once per SIMD target.
//
// Invariant: the bits are those of Code::load() and Code::of() (packed-inl.hpp), which define the
// codes.
#if defined(TANDEM_ACTORS_KERNELS_UPDATE_CODES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_UPDATE_CODES_INL
#undef TANDEM_ACTORS_KERNELS_UPDATE_CODES_INL
#else
#define TANDEM_ACTORS_KERNELS_UPDATE_CODES_INL
#endif

#include <cstddef>
#include <cstdint>

#include "actors/kernels/update/pairs-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// Stores a vector of codes. `random` has the random bits of both state arrays.
template <bool kOrdinary, bool kSigned>
HWY_INLINE void store_code(VF32 value, VU32 random, std::uint8_t scale, std::uint8_t* to) {
  constexpr std::size_t kArray = kSigned ? 0 : 1;
  const auto code =
      Code<kSigned>::template of<kOrdinary>(value, bits_of_array<kArray>(random), scale);
  hn::StoreU(hn::DemoteTo(U8(), hn::BitCast(I32(), code)), U8(), to);
}

#if HWY_TARGET == HWY_AVX3

/// As Code::load(), for two vectors at once: a code determines only the upper half of the number's
/// bits.
template <bool kSigned>
HWY_INLINE void load_codes(const std::uint8_t* from, std::uint8_t scale, VF32& a, VF32& b) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const bool lost = scale == 255;
  const __m512i poison = _mm512_set1_epi16(lost ? 0x7fc0 : 0);
  const __m512i first =
      _mm512_set1_epi16(static_cast<std::int16_t>(lost ? 0U : Code<kSigned>::base(scale) << 4));
  __m512i words = kSigned ? _mm512_cvtepi8_epi16(codes) : _mm512_cvtepu8_epi16(codes);
  const __mmask32 counts = _mm512_test_epi16_mask(words, _mm512_set1_epi16(kSigned ? 0x7f : 0xff));
  words = _mm512_slli_epi16(words, 4);
  if constexpr (kSigned) {
    words = _mm512_and_si512(words, _mm512_set1_epi16(static_cast<std::int16_t>(0x87ff)));
  }
  words = _mm512_or_si512(words, poison);
  VU32 x, y;
  interleave(_mm512_setzero_si512(), _mm512_mask_add_epi16(words, counts, words, first), x, y);
  a = hn::BitCast(F32(), x);
  b = hn::BitCast(F32(), y);
}

/// Stores the ordinary codes of four vectors, as Code::of() computes them: sign and code lie in the
/// upper half of each sum of value and random bits.
template <bool kSigned>
HWY_INLINE void store_ordinary_codes(VF32 a, VF32 b, VF32 c, VF32 e, VU32 random_a, VU32 random_b,
                                     VU32 random_c, VU32 random_e, std::uint8_t scale,
                                     std::uint8_t* to) {
  const U32 d;
  const hn::Repartition<std::uint16_t, U32> d16;
  constexpr std::size_t kArray = kSigned ? 0 : 1;
  const auto base = hn::Set(d16, static_cast<std::uint16_t>(Code<kSigned>::base(scale)));
  const auto rounded = [d](VF32 value, VU32 random) HWY_ATTR {
    return hn::BitCast(
        hn::Repartition<std::uint16_t, U32>(),
        hn::Add(hn::BitCast(d, value), hn::ShiftLeft<4>(bits_of_array<kArray>(random))));
  };
  const auto codes = [d16, base](hn::Vec<decltype(d16)> low, hn::Vec<decltype(d16)> high) HWY_ATTR {
    const auto words = hn::Sub(hn::ShiftRight<4>(hn::ConcatOdd(d16, high, low)), base);
    if constexpr (kSigned) {  // the sign is at 0x800
      const auto below = hn::Set(d16, 0x7f);
      return hn::Or(hn::And(below, words), hn::AndNot(below, hn::ShiftRight<4>(words))).raw;
    } else {
      return words.raw;
    }
  };
  const __m512i packed = _mm512_packus_epi16(codes(rounded(a, random_a), rounded(b, random_b)),
                                             codes(rounded(c, random_c), rounded(e, random_e)));
  // Each 128 bits are packed on their own.
  _mm512_storeu_si512(to,
                      _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed));
}

#else

template <bool kSigned>
HWY_INLINE void load_codes(const std::uint8_t* from, std::uint8_t scale, VF32& a, VF32& b) {
  a = Code<kSigned>::load(from, scale);
  b = Code<kSigned>::load(from + hn::Lanes(F32()), scale);
}

#endif

/// Stores four vectors of codes.
template <bool kOrdinary, bool kSigned>
HWY_INLINE void store_four_codes(VF32 a, VF32 b, VF32 c, VF32 e, VU32 random_a, VU32 random_b,
                                 VU32 random_c, VU32 random_e, std::uint8_t scale,
                                 std::uint8_t* to) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kOrdinary) {
    return store_ordinary_codes<kSigned>(a, b, c, e, random_a, random_b, random_c, random_e, scale,
                                         to);
  }
#endif
  const std::size_t lanes = hn::Lanes(U32());
  store_code<kOrdinary, kSigned>(a, random_a, scale, to);
  store_code<kOrdinary, kSigned>(b, random_b, scale, to + lanes);
  store_code<kOrdinary, kSigned>(c, random_c, scale, to + 2 * lanes);
  store_code<kOrdinary, kSigned>(e, random_e, scale, to + 3 * lanes);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
