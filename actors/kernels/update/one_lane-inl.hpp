// actors/kernels/update/one_lane-inl.hpp — vectors of one lane: the Highway operations that the
// rules and layouts use, for one number at a time, in C++17, on the host and on a GPU.
//
// So the rules (adam_rule-inl.hpp and the others) are written once. Included after hwy/highway.h,
// they compute with the CPU's vectors; included after this file, with one thread of a GPU. A source
// includes only one of the two.
// Invariant: each operation is the IEEE one, rounded once; none is fused with the next, and
// denormals are kept. (A NaN's payload depends on the processor.)
#pragma once

#ifdef HWY_TARGET
#error "a source is compiled for Highway's targets or for one lane"
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define HWY_INLINE inline __host__ __device__
#else
#define HWY_INLINE inline
#endif
#define HWY_NAMESPACE N_ONE_LANE
#define HWY_BEFORE_NAMESPACE() static_assert(true, "")
#define HWY_AFTER_NAMESPACE() static_assert(true, "")

namespace hwy::HWY_NAMESPACE {

/// A kind of vector.
template <class T>
struct Tag {
  using Lane = T;
  HWY_INLINE constexpr Tag() {}
};
template <class T>
struct One {
  T value;
};
template <class T>
struct Truth {
  bool value;
};

template <class T>
using ScalableTag = Tag<T>;
template <class D>
using Vec = One<typename D::Lane>;
template <class D>
using Mask = Truth<typename D::Lane>;
template <class T, class D>
using Rebind = Tag<T>;

template <std::size_t kBytes>
struct Integers;
template <>
struct Integers<4> {
  using Unsigned = std::uint32_t;
  using Signed = std::int32_t;
};
template <class D>
using RebindToUnsigned = Tag<typename Integers<sizeof(typename D::Lane)>::Unsigned>;
template <class D>
using RebindToSigned = Tag<typename Integers<sizeof(typename D::Lane)>::Signed>;

using F = One<float>;
using U = One<std::uint32_t>;
using I = One<std::int32_t>;

// --- lanes
template <class D>
HWY_INLINE constexpr std::size_t Lanes(D) {
  return 1;
}
template <class D>
HWY_INLINE constexpr std::size_t MaxLanes(D) {
  return 1;
}
template <class D>
HWY_INLINE Vec<D> Set(D, typename D::Lane value) {
  return {value};
}
template <class D>
HWY_INLINE Vec<D> Zero(D) {
  return {0};
}
/// The lanes' numbers, counted from `first`.
template <class D>
HWY_INLINE Vec<D> Iota(D, typename D::Lane first) {
  return {first};
}

// --- memory
template <class D>
HWY_INLINE Vec<D> LoadU(D, const typename D::Lane* from) {
  return {*from};
}
template <class D>
HWY_INLINE void StoreU(Vec<D> v, D, typename D::Lane* to) {
  *to = v.value;
}
template <class D>
HWY_INLINE void Stream(Vec<D> v, D, typename D::Lane* to) {
  *to = v.value;
}

// --- arithmetic of fp32
#ifdef __CUDA_ARCH__
HWY_INLINE F Add(F a, F b) { return {__fadd_rn(a.value, b.value)}; }
HWY_INLINE F Sub(F a, F b) { return {__fsub_rn(a.value, b.value)}; }
HWY_INLINE F Mul(F a, F b) { return {__fmul_rn(a.value, b.value)}; }
HWY_INLINE F Div(F a, F b) { return {__fdiv_rn(a.value, b.value)}; }
HWY_INLINE F Sqrt(F a) { return {__fsqrt_rn(a.value)}; }
#else
HWY_INLINE F Add(F a, F b) { return {a.value + b.value}; }
HWY_INLINE F Sub(F a, F b) { return {a.value - b.value}; }
HWY_INLINE F Mul(F a, F b) { return {a.value * b.value}; }
HWY_INLINE F Div(F a, F b) { return {a.value / b.value}; }
HWY_INLINE F Sqrt(F a) { return {sqrtf(a.value)}; }
#endif

// --- bits, and integers modulo 2^32
template <class D, class T>
HWY_INLINE Vec<D> BitCast(D, One<T> from) {
  static_assert(sizeof(T) == sizeof(typename D::Lane), "the bits are as many");
  Vec<D> to;
  memcpy(&to.value, &from.value, sizeof(T));
  return to;
}
HWY_INLINE U And(U a, U b) { return {a.value & b.value}; }
HWY_INLINE U Or(U a, U b) { return {a.value | b.value}; }
HWY_INLINE U Xor(U a, U b) { return {a.value ^ b.value}; }
HWY_INLINE U Add(U a, U b) { return {a.value + b.value}; }
HWY_INLINE U Sub(U a, U b) { return {a.value - b.value}; }
HWY_INLINE U Mul(U a, U b) { return {a.value * b.value}; }
template <int kBits>
HWY_INLINE U ShiftLeft(U a) {
  return {a.value << kBits};
}
template <int kBits>
HWY_INLINE U ShiftRight(U a) {
  return {a.value >> kBits};
}
template <int kBits>
HWY_INLINE I ShiftRight(I a) {
  return {a.value >> kBits};
}
/// Returns all bits set for a negative number, else none.
HWY_INLINE I BroadcastSignBit(I a) { return {a.value < 0 ? -1 : 0}; }
HWY_INLINE I Or(I a, I b) { return {a.value | b.value}; }
HWY_INLINE I Sub(I a, I b) { return {a.value - b.value}; }
template <class T>
HWY_INLINE One<T> Max(One<T> a, One<T> b) {
  return {a.value < b.value ? b.value : a.value};
}
template <class T>
HWY_INLINE One<T> Min(One<T> a, One<T> b) {
  return {b.value < a.value ? b.value : a.value};
}

HWY_INLINE F Abs(F a) {
  return BitCast(Tag<float>(), And(BitCast(Tag<std::uint32_t>(), a), U{0x7fffffff}));
}
HWY_INLINE F CopySign(F magnitude, F sign) {
  const U bits = BitCast(Tag<std::uint32_t>(), Abs(magnitude));
  const U top = And(BitCast(Tag<std::uint32_t>(), sign), U{0x80000000});
  return BitCast(Tag<float>(), Or(bits, top));
}

// --- other widths
template <class D>
HWY_INLINE U PromoteTo(D, One<std::uint16_t> a) {
  return {a.value};
}
template <class D>
HWY_INLINE U PromoteTo(D, One<std::uint8_t> a) {
  return {a.value};
}
/// Saturates.
template <class D>
HWY_INLINE Vec<D> DemoteTo(D, I a) {
  constexpr std::int32_t kMost = static_cast<typename D::Lane>(~typename D::Lane{0});
  return {static_cast<typename D::Lane>(Min(Max(a, I{0}), I{kMost}).value)};
}
/// For integers that fp32 represents exactly.
template <class D>
HWY_INLINE F ConvertTo(D, I a) {
  return {static_cast<float>(a.value)};
}

// --- comparisons
template <class T>
HWY_INLINE Truth<T> Gt(One<T> a, One<T> b) {
  return {a.value > b.value};
}
template <class T>
HWY_INLINE Truth<T> Eq(One<T> a, One<T> b) {
  return {a.value == b.value};
}
HWY_INLINE Truth<float> IsNaN(F a) { return {a.value != a.value}; }
template <class D, class T>
HWY_INLINE Mask<D> RebindMask(D, Truth<T> is) {
  return {is.value};
}
template <class T>
HWY_INLINE One<T> IfThenElse(Truth<T> is, One<T> yes, One<T> no) {
  return is.value ? yes : no;
}
template <class T>
HWY_INLINE One<T> IfThenElseZero(Truth<T> is, One<T> yes) {
  return {is.value ? yes.value : T{0}};
}
template <class T>
HWY_INLINE One<T> IfThenZeroElse(Truth<T> is, One<T> no) {
  return {is.value ? T{0} : no.value};
}

}  // namespace hwy::HWY_NAMESPACE
