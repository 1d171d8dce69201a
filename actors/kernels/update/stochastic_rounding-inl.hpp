// actors/kernels/update/stochastic_rounding-inl.hpp — a 32-bit mixer on vectors, which computes the
// random bits of a position; compiled once per SIMD target, and for one lane.
//
// Invariant: operations work lane by lane, so no bit depends on the vector's width.
#if defined(TANDEM_ACTORS_KERNELS_UPDATE_STOCHASTIC_ROUNDING_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_UPDATE_STOCHASTIC_ROUNDING_INL
#undef TANDEM_ACTORS_KERNELS_UPDATE_STOCHASTIC_ROUNDING_INL
#else
#define TANDEM_ACTORS_KERNELS_UPDATE_STOCHASTIC_ROUNDING_INL
#endif

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The step between the numbers of neighbouring positions, which makes them differ in many bits.
inline constexpr std::uint32_t kRoundingStep = 0x9e3779b1;

/// Returns a bijection of 32 bits that leaves no pattern of `x` visible. D has unsigned 32-bit
/// lanes.
template <class D>
HWY_INLINE hn::Vec<D> mixed_bits(D d, hn::Vec<D> x) {
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x7feb352d));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, 0x846ca68b));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
