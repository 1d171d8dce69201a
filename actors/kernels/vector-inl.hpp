// actors/kernels/vector-inl.hpp — loads and stores of fp32, bf16 and fp16 as fp32 vectors, compiled
// once per SIMD target.
//
// The kernels' sources include this file after hwy/highway.h, inside their foreach_target passes
// (hence no #pragma once). Highway's own fp32->bf16 conversion truncates on several targets, and
// its emulated fp16 conversions flush denormals. The conversions here round to nearest even
// everywhere, overflow to infinity, keep denormals, and keep NaN a NaN (quiet bit set, upper
// payload bits kept). CPUs that convert fp16 have an instruction with the same rounding.
// Invariant: every function is exact or rounds by IEEE-754 lane by lane, so no result depends on
// the vector's width.
#if defined(TANDEM_ACTORS_KERNELS_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_VECTOR_INL
#undef TANDEM_ACTORS_KERNELS_VECTOR_INL
#else
#define TANDEM_ACTORS_KERNELS_VECTOR_INL
#endif

#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 16-bit floats as they lie in memory.
struct Bf16Bits {
  std::uint16_t bits;
};
struct F16Bits {
  std::uint16_t bits;
};

template <class D>
using U16 = hn::Rebind<std::uint16_t, D>;

template <class D, class Bits>
HWY_INLINE hn::Vec<U16<D>> load_bits(D, const Bits* from) {
  return hn::LoadU(U16<D>(), &from->bits);
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const Bf16Bits* from) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, load_bits(d, from))));
}

/// Converts fp32 to bf16 bits, to nearest even: adds 0x7fff plus the bit that will be the last one,
/// then cuts.
template <class D>
HWY_INLINE hn::Vec<U16<D>> to_bits(D, hn::Vec<D> value, Bf16Bits) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const U16<D> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto top = hn::ShiftRight<16>(bits);
  const auto last = hn::And(top, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(last, hn::Set(d32, 0x7fff))));
  const auto quiet_nan = hn::Or(top, hn::Set(d32, 0x40));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), quiet_nan, rounded);
  return hn::DemoteTo(d16, hn::BitCast(di32, chosen));  // saturates; all values fit
}

#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)) || HWY_ARCH_ARM_A64

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const F16Bits* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::BitCast(d16, load_bits(d, from)));
}

template <class D>
HWY_INLINE hn::Vec<U16<D>> to_bits(D, hn::Vec<D> value, F16Bits) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::BitCast(U16<D>(), hn::DemoteTo(d16, value));
}

#else

inline constexpr std::uint32_t kF32Inf = 0x7f800000;
inline constexpr std::uint32_t kF32Quiet = 0x00400000;
inline constexpr std::uint32_t kRebias = (127 - 15) << 23;  // from fp16's exponent bias to fp32's
inline constexpr std::uint32_t kLeastNormal = 113U << 23;   // 2^-14, fp16's least normal number

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const F16Bits* from) {
  const hn::RebindToUnsigned<D> d32;
  const auto half = hn::PromoteTo(d32, load_bits(d, from));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000)));
  const auto exponent = hn::And(half, hn::Set(d32, 0x7c00));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d32, 0x7fff)));
  const auto normal = hn::Add(magnitude, hn::Set(d32, kRebias));
  // A denormal's mantissa behind the exponent of 2^-14, less 2^-14: exact.
  const auto least = hn::Set(d32, kLeastNormal);
  const auto small =
      hn::BitCast(d32, hn::Sub(hn::BitCast(d, hn::Add(magnitude, least)), hn::BitCast(d, least)));
  const auto inf = hn::Set(d32, kF32Inf);
  auto special = hn::Or(magnitude, inf);
  special = hn::IfThenElse(hn::Eq(special, inf), inf, hn::Or(special, hn::Set(d32, kF32Quiet)));
  auto chosen = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d32)), small, normal);
  chosen = hn::IfThenElse(hn::Eq(exponent, hn::Set(d32, 0x7c00)), special, chosen);
  return hn::BitCast(d, hn::Or(chosen, sign));
}

/// Converts fp32 to fp16 bits, to nearest even. For normal results it adds half a unit less one,
/// plus the bit that will be the last one, and cuts. For denormal results the adder rounds: 0.5 is
/// added, whose last bit weighs as much as fp16's least denormal.
template <class D>
HWY_INLINE hn::Vec<U16<D>> to_bits(D d, hn::Vec<D> value, F16Bits) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const auto bits = hn::BitCast(d32, value);
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffffff));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto last = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1));
  const auto normal = hn::ShiftRight<13>(
      hn::Add(hn::Sub(magnitude, hn::Set(d32, kRebias)), hn::Add(last, hn::Set(d32, 0xfff))));
  const auto half = hn::Set(d32, 0x3f000000);  // 0.5
  const auto small =
      hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
  const auto nan =
      hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x3ff)), hn::Set(d32, 0x7e00));
  // Magnitudes are below 2^31, so they are compared as signed numbers.
  const auto signed_magnitude = hn::BitCast(di32, magnitude);
  const auto above = [&](std::uint32_t limit) {
    return hn::RebindMask(
        d32, hn::Gt(signed_magnitude, hn::Set(di32, static_cast<std::int32_t>(limit))));
  };
  auto chosen = hn::IfThenElse(above(kLeastNormal - 1), normal, small);
  chosen = hn::IfThenElse(above(0x477fffff), hn::Set(d32, 0x7c00), chosen);  // from 2^16 on
  chosen = hn::IfThenElse(above(kF32Inf), nan, chosen);
  return hn::DemoteTo(U16<D>(), hn::BitCast(di32, hn::Or(chosen, sign)));
}

#endif

template <class D>
HWY_INLINE void store_f32(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

template <class D, class Bits>
HWY_INLINE void store_f32(D d, hn::Vec<D> value, Bits* to) {
  hn::StoreU(to_bits(d, value, Bits()), U16<D>(), &to->bits);
}

/// Stores without reading the lines (a non-temporal store). `to` is aligned to the stored vector. A
/// vector below 16 bytes is stored normally, because there is no such instruction for it.
template <class D>
HWY_INLINE void stream_f32(D d, hn::Vec<D> value, float* to) {
  hn::Stream(value, d, to);
}

template <class D, class Bits>
HWY_INLINE void stream_f32(D d, hn::Vec<D> value, Bits* to) {
  if constexpr (hn::MaxLanes(U16<D>()) * sizeof(Bits) >= 16) {
    hn::Stream(to_bits(d, value, Bits()), U16<D>(), &to->bits);
  } else {
    store_f32(d, value, to);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
