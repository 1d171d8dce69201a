// actors/kernels/update/update_packed-inl.hpp — the update loop for split masters and for bf16
// moments; compiled once per SIMD target.
//
// Invariants as in update-inl.hpp. Between load and store the arithmetic is the same as with fp32
// state, operation by operation.
#if defined(TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL
#undef TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL
#else
#define TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/kernels/update/pairs-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// kSplitMaster: `master` is the remainder of the bf16 `weight`; else it is fp32, and no weight is
/// written. Moments in fp32 beside a split master carry its ties.
template <bool kSplitMaster, class MomentType, class GradientType>
struct Packing {
  using Master = std::conditional_t<kSplitMaster, std::uint16_t, float>;
  using Moment = MomentType;
  using Gradient = GradientType;
  static constexpr bool kSplit = kSplitMaster;
  static constexpr bool kExact = std::is_same_v<Moment, float>;
};

/// The addresses of a range's first element in each array. In place, an array and its source are
/// the same.
template <class P>
struct PackedArrays {
  const typename P::Gradient* gradient;
  const Bf16Bits* weight_from;
  const typename P::Master* master_from;
  const typename P::Moment* state_from[2];
  Bf16Bits* weight;
  typename P::Master* master;
  typename P::Moment* state[2];
};

template <std::size_t kArray, bool kStream>
HWY_INLINE void store_moments(VF32 a, VF32 b, VU32, VU32, float* to) {
  const F32 d;
  if constexpr (kStream) {
    hn::Stream(a, d, to);
    hn::Stream(b, d, to + hn::Lanes(d));
  } else {
    hn::StoreU(a, d, to);
    hn::StoreU(b, d, to + hn::Lanes(d));
  }
}

template <std::size_t kArray, bool kStream>
HWY_INLINE void store_moments(VF32 a, VF32 b, VU32 rounding_a, VU32 rounding_b, Bf16Bits* to) {
  const auto first = bits_of_array<kArray>(rounding_a);
  const auto second = bits_of_array<kArray>(rounding_b);
  if constexpr (kArray == 1) {  // of two moments the second is a mean of squares
    // Nearly always all values lie where both rounding rules only add the random bits.
    const U32 d;
    const auto bits_a = hn::BitCast(d, a), bits_b = hn::BitCast(d, b);
    const auto apart = hn::Or(hn::Gt(hn::Max(bits_a, bits_b), hn::Set(d, kGreatestRounded)),
                              hn::Lt(hn::Min(bits_a, bits_b), hn::Set(d, 0x10000)));
    if (HWY_LIKELY(hn::AllFalse(d, apart))) {
      store_upper<kStream>(hn::Add(bits_a, first), hn::Add(bits_b, second), &to->bits);
    } else {
      store_upper<kStream>(round_to_bf16_above_zero(a, first), round_to_bf16_above_zero(b, second),
                           &to->bits);
    }
  } else {
    store_upper<kStream>(round_to_bf16(a, first), round_to_bf16(b, second), &to->bits);
  }
}

/// Updates two vectors of elements.
template <bool kStream, class Rule, class P>
HWY_INLINE void packed_pair(const Rule& rule, const PackedArrays<P>& a, std::size_t i,
                            VU32 rounding_a, VU32 rounding_b) {
  const F32 df;
  const U32 d;
  constexpr bool kTies = P::kSplit && P::kExact;
  auto s0a = hn::Zero(df), s0b = hn::Zero(df), s1a = hn::Zero(df), s1b = hn::Zero(df);
  load_pair(a.state_from[0] + i, s0a, s0b);
  if constexpr (Rule::kStates > 1) {
    load_pair(a.state_from[1] + i, s1a, s1b);
  }
  auto& tied_a = Rule::kStates > 1 ? s1a : s0a;
  auto& tied_b = Rule::kStates > 1 ? s1b : s0b;
  auto pa = hn::Zero(df), pb = hn::Zero(df);
  if constexpr (P::kSplit) {
    if constexpr (kTies) {
      auto halves_a = hn::Zero(d), halves_b = hn::Zero(d);
      load_halves(a.weight_from + i, a.master_from + i, halves_a, halves_b);
      pa = join_master(halves_a, take_ties(tied_a));
      pb = join_master(halves_b, take_ties(tied_b));
    } else {
      load_masters(a.weight_from + i, a.master_from + i, pa, pb);
    }
  } else {
    load_pair(a.master_from + i, pa, pb);
  }
  auto ga = hn::Zero(df), gb = hn::Zero(df);
  load_pair(a.gradient + i, ga, gb);
  const auto scale = hn::Set(df, rule.gradient_scale());
  pa = rule(df, pa, hn::Mul(ga, scale), s0a, s1a);
  pb = rule(df, pb, hn::Mul(gb, scale), s0b, s1b);
  if constexpr (P::kSplit) {
    auto sum_a = hn::Zero(d), sum_b = hn::Zero(d), low_a = hn::Zero(d), low_b = hn::Zero(d);
    bits_to_split(pa, pb, low_a, low_b);
    if constexpr (kTies) {
      tied_a = put_tie(split_bits(low_a, sum_a), tied_a);
      tied_b = put_tie(split_bits(low_b, sum_b), tied_b);
    } else {
      split_bits_near(low_a, sum_a);
      split_bits_near(low_b, sum_b);
    }
    store_upper<false>(sum_a, sum_b, &a.weight[i].bits);  // in place, or one that is being restored
    store_lower<kStream>(low_a, low_b, a.master + i);
  } else {
    store_moments<0, kStream>(pa, pb, rounding_a, rounding_b, a.master + i);  // fp32: as it is
  }
  store_moments<0, kStream>(s0a, s0b, rounding_a, rounding_b, a.state[0] + i);
  if constexpr (Rule::kStates > 1) {
    store_moments<1, kStream>(s1a, s1b, rounding_a, rounding_b, a.state[1] + i);
  }
}

/// Updates the last elements, fewer than two vectors, through copies on the stack, so that nothing
/// beyond the range is read or written.
template <class Rule, class P>
void packed_tail(const Rule& rule, const PackedArrays<P>& a, std::size_t begin, std::size_t count,
                 VU32 rounding_a, VU32 rounding_b) {
  constexpr std::size_t kLanes = 2 * hn::MaxLanes(F32());
  typename P::Gradient gradient[kLanes] = {};
  Bf16Bits weight[kLanes] = {};
  typename P::Master master[kLanes] = {};
  typename P::Moment state[2][kLanes] = {};
  const auto copy = [count](auto* to, const auto* from) {
    for (std::size_t k = 0; k < count; ++k) {
      to[k] = from[k];
    }
  };
  copy(gradient, a.gradient + begin);
  copy(master, a.master_from + begin);
  if constexpr (P::kSplit) {
    copy(weight, a.weight_from + begin);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    copy(state[k], a.state_from[k] + begin);
  }
  const PackedArrays<P> local = {
      gradient, weight, master, {state[0], state[1]}, weight, master, {state[0], state[1]}};
  packed_pair<false>(rule, local, 0, rounding_a, rounding_b);
  copy(a.master + begin, master);
  if constexpr (P::kSplit) {
    copy(a.weight + begin, weight);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    copy(a.state[k] + begin, state[k]);
  }
}

template <bool kStream, class Rule, class P>
void packed_range(const Rule& shared, const PackedArrays<P>& shared_arrays,
                  const RoundingBits rounding_bits, std::size_t count) {
  const Rule rule = shared;  // copies nothing can alias: their values stay in registers
  const PackedArrays<P> a = shared_arrays;
  const std::size_t lanes = hn::Lanes(F32());
  auto unmixed = rounding_bits.unmixed(0);
  const auto next = [&unmixed]() HWY_ATTR {
    return P::kExact ? hn::Zero(U32()) : RoundingBits::next(unmixed);
  };
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto first = next(), second = next();
    packed_pair<kStream>(rule, a, i, first, second);
  }
  if (i < count) {
    const auto first = next(), second = next();
    packed_tail(rule, a, i, count - i, first, second);
  }
  if constexpr (kStream) {
    hwy::FlushStream();
  }
}

/// Returns whether master and state differ from their sources and are aligned, as non-temporal
/// stores need. In place, such stores would write lines that the loads have just cached.
template <class Rule, class P>
bool streams(const PackedArrays<P>& a) {
  const auto apart = [](const void* to, const void* from) {
    return to != from && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
  };
  bool all = apart(a.master, a.master_from);
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    all = all && apart(a.state[k], a.state_from[k]);
  }
  return all;
}

template <class P, class Rule>
void update_packed_as(const Rule& rule, std::uint32_t key, const UpdateBuffers& b,
                      std::size_t begin, std::size_t count) {
  PackedArrays<P> a = {};
  a.gradient = static_cast<const typename P::Gradient*>(b.gradient) + begin;
  const auto place = [begin]<class T>(void* array, const void* from, T*& to, const T*& source) {
    to = static_cast<T*>(array) + begin;
    source = from == nullptr ? to : static_cast<const T*>(from) + begin;
  };
  place(b.master, b.from.master, a.master, a.master_from);
  if constexpr (P::kSplit) {
    place(b.weight, b.from.weight, a.weight, a.weight_from);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    place(b.state[k], b.from.state[k], a.state[k], a.state_from[k]);
  }
  const RoundingBits rounding_bits(key, b.position + begin);
  if (streams<Rule>(a)) {
    packed_range<true>(rule, a, rounding_bits, count);
  } else {
    packed_range<false>(rule, a, rounding_bits, count);
  }
}

/// Updates `count` elements from `begin` on by the rule; moments have the type Moment.
template <class Moment, class Rule>
void update_packed_elements(const Rule& rule, std::uint32_t key, const UpdateBuffers& b,
                            std::size_t begin, std::size_t count) {
  if constexpr (!std::is_same_v<Moment, float>) {
    if (b.weight == nullptr) {
      return update_packed_as<Packing<false, Moment, float>>(rule, key, b, begin, count);
    }
  }
  if (b.gradient_type == DType::kF32) {
    return update_packed_as<Packing<true, Moment, float>>(rule, key, b, begin, count);
  }
  update_packed_as<Packing<true, Moment, Bf16Bits>>(rule, key, b, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
