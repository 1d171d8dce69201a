// models/kernels/lanes-inl.hpp — loops over rows of fp32, bf16 or fp16 in fp32 vectors, compiled
// once per SIMD target.
//
// Included after actors/kernels/vector-inl.hpp inside the foreach_target passes (hence no #pragma
// once). A row's tail goes four elements at a time, and then one at a time, through the same
// expressions.
#if defined(TANDEM_MODELS_KERNELS_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_MODELS_KERNELS_LANES_INL
#undef TANDEM_MODELS_KERNELS_LANES_INL
#else
#define TANDEM_MODELS_KERNELS_LANES_INL
#endif

#include <cstdint>
#include <type_traits>

#include <hwy/contrib/math/math-inl.h>

#include "actors/kernels/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using Lanes = hn::CappedTag<float, 16>;
using FourLanes = hn::FixedTag<float, 4>;
using OneLane = hn::FixedTag<float, 1>;

/// The type that the bits T stand for.
template <class T>
inline constexpr DType kTypeOf = std::is_same_v<T, float>      ? DType::kF32
                                 : std::is_same_v<T, Bf16Bits> ? DType::kBF16
                                                               : DType::kF16;

/// Calls call(element) with an element of the type as it lies in memory.
template <class Call>
void with_element(DType type, Call call) {
  switch (type) {
    case DType::kF32:
      return call(0.0F);
    case DType::kBF16:
      return call(Bf16Bits());
    case DType::kF16:
      return call(F16Bits());
  }
}

/// Calls body(tag, i) for i = 0, lanes, 2 lanes ... below n, then by fours, then one by one.
template <class Body>
HWY_INLINE void for_lanes(std::int64_t n, Body body) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    body(d, i);
  }
  for (; i + 4 <= n; i += 4) {
    body(FourLanes(), i);
  }
  for (; i < n; ++i) {
    body(OneLane(), i);
  }
}

/// Sum of term(tag, i) over a row. Two partial sums hide the latency of the addition.
template <class Term>
HWY_INLINE float sum_lanes(std::int64_t n, Term term) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Add(even, term(d, i));
    odd = hn::Add(odd, term(d, i + lanes));
  }
  if (i + lanes <= n) {
    even = hn::Add(even, term(d, i));
    i += lanes;
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  const FourLanes d4;
  auto fours = hn::Zero(d4);
  for (; i + 4 <= n; i += 4) {
    fours = hn::Add(fours, term(d4, i));
  }
  sum += hn::GetLane(hn::SumOfLanes(d4, fours));
  for (; i < n; ++i) {
    sum += hn::GetLane(term(OneLane(), i));
  }
  return sum;
}

template <class T>
HWY_INLINE float max_lanes(const T* row, std::int64_t n) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float largest = hn::GetLane(load_f32(OneLane(), row));
  std::int64_t i = 0;
  if (n >= lanes) {
    auto best = load_f32(d, row);
    for (i = lanes; i + lanes <= n; i += lanes) {
      best = hn::Max(best, load_f32(d, row + i));
    }
    largest = hn::GetLane(hn::MaxOfLanes(d, best));
  }
  const FourLanes d4;
  for (; i + 4 <= n; i += 4) {
    const float value = hn::GetLane(hn::MaxOfLanes(d4, load_f32(d4, row + i)));
    largest = value > largest ? value : largest;
  }
  for (; i < n; ++i) {
    const float value = hn::GetLane(load_f32(OneLane(), row + i));
    largest = value > largest ? value : largest;
  }
  return largest;
}

template <class T>
HWY_INLINE float load_one(const T* from) {
  return hn::GetLane(load_f32(OneLane(), from));
}

template <class T>
HWY_INLINE void store_one(float value, T* to) {
  store_f32(OneLane(), hn::Set(OneLane(), value), to);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
