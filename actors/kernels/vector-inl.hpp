// actors/kernels/vector-inl.hpp — loads and stores of fp32 and bf16 as fp32 vectors, compiled once
// per SIMD target.
//
// Included by the kernels' sources after hwy/highway.h, inside their foreach_target passes (hence
// no #pragma once). Highway's own fp32->bf16 conversion truncates on several targets; the one here
// rounds to nearest even everywhere and keeps NaN a NaN (quiet bit set, upper payload bits kept).
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

using Bf16Bits = std::uint16_t;  // a bf16 as it lies in memory

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const Bf16Bits* from) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<Bf16Bits, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
}

/// fp32 -> bf16 bits, to nearest even: add 0x7fff plus the bit that will be the last one, then cut.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<Bf16Bits, D>> to_bf16(D, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<Bf16Bits, D> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto top = hn::ShiftRight<16>(bits);
  const auto last = hn::And(top, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(last, hn::Set(d32, 0x7fff))));
  const auto quiet_nan = hn::Or(top, hn::Set(d32, 0x40));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), quiet_nan, rounded);
  return hn::DemoteTo(d16, hn::BitCast(di32, chosen));  // saturates; all values fit
}

template <class D>
HWY_INLINE void store_f32(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

template <class D>
HWY_INLINE void store_f32(D d, hn::Vec<D> value, Bf16Bits* to) {
  const hn::Rebind<Bf16Bits, D> d16;
  hn::StoreU(to_bf16(d, value), d16, to);
}

/// Non-temporal store: `to` is aligned to the stored vector. Below 16 bytes there is no such
/// instruction.
template <class D>
HWY_INLINE void stream_f32(D d, hn::Vec<D> value, float* to) {
  hn::Stream(value, d, to);
}

template <class D>
HWY_INLINE void stream_f32(D d, hn::Vec<D> value, Bf16Bits* to) {
  const hn::Rebind<Bf16Bits, D> d16;
  if constexpr (hn::MaxLanes(hn::Rebind<Bf16Bits, D>()) * sizeof(Bf16Bits) >= 16) {
    hn::Stream(to_bf16(d, value), d16, to);
  } else {
    hn::StoreU(to_bf16(d, value), d16, to);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
