// actors/kernels/update_packed-inl.hpp — the frame of update-inl.hpp for split masters and for bf16 moments; compiled
// once per SIMD target.
//
// Invariants as there. The arithmetic between load and store is fp32's, operation by operation.
#if defined(TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL
#undef TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL
#else
#define TANDEM_ACTORS_KERNELS_UPDATE_PACKED_INL
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "actors/kernels/optimizer_step.hpp"
#include "actors/kernels/packed-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// kSplitMaster: `master` is the remainder of the bf16 `weight`; else it is fp32, and no weight is written. Moments in fp32
/// beside a split master carry its ties.
template <bool kSplitMaster, class MomentType, class GradientType>
struct Packing {
  using Master = std::conditional_t<kSplitMaster, std::uint16_t, float>;
  using Moment = MomentType;
  using Gradient = GradientType;
  static constexpr bool kSplit = kSplitMaster;
  static constexpr bool kExact = std::is_same_v<Moment, float>;
};

/// Where a range's first element lies in each array. In place, an array and its source are the same.
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

template <class P, std::size_t kArray, bool kCarriesTies, bool kStream>
HWY_INLINE void store_moment(VF32 value, VU32 ties, VU32 noise, typename P::Moment* to) {
  const U32 d;
  auto bits = hn::BitCast(d, value);
  if constexpr (P::kExact) {
    if constexpr (kCarriesTies) {
      bits = hn::Or(hn::And(bits, hn::Set(d, kMagnitude)), ties);
    }
    if constexpr (kStream) {
      hn::Stream(hn::BitCast(F32(), bits), F32(), to);
    } else {
      hn::StoreU(hn::BitCast(F32(), bits), F32(), to);
    }
  } else {
    const auto random = bits_of_array<kArray>(noise);
    // Of two moments the second is a mean of squares.
    bits = kArray == 1 ? round_to_bf16_above_zero(bits, random) : round_to_bf16(bits, random);
    store_u16<kStream>(bits, &to->bits);
  }
}

/// One vector of elements.
template <bool kStream, class Rule, class P>
HWY_INLINE void packed_vector(const Rule& rule, const PackedArrays<P>& a, std::size_t i,
                              VU32 noise) {
  const F32 df;
  const U32 d;
  constexpr bool kTies = P::kSplit && P::kExact;
  constexpr std::size_t kTieArray = Rule::kStates - 1;
  VF32 states[2] = {load_f32(df, a.state_from[0] + i), hn::Zero(df)};
  if constexpr (Rule::kStates > 1) {
    states[1] = load_f32(df, a.state_from[1] + i);
  }
  VF32 p;
  if constexpr (P::kSplit) {
    auto ties = hn::Zero(d);
    if constexpr (kTies) {
      ties = hn::And(hn::ShiftRight<15>(hn::BitCast(d, states[kTieArray])), hn::Set(d, 0x10000));
      states[kTieArray] = hn::Abs(states[kTieArray]);
    }
    p = join_master(a.weight_from + i, a.master_from + i, ties);
  } else {
    p = hn::LoadU(df, a.master_from + i);
  }
  const auto g = hn::Mul(load_f32(df, a.gradient + i), hn::Set(df, rule.gradient_scale()));
  const auto updated = rule(df, p, g, states[0], states[1]);
  auto tie_signs = hn::Zero(d);
  if constexpr (P::kSplit) {
    auto high = hn::Zero(d);
    auto low = hn::Zero(d);
    const auto tie = split_master(updated, high, low);
    if constexpr (kTies) {
      tie_signs = hn::IfThenElseZero(tie, hn::Set(d, kSignBit));
    } else {
      low = hn::IfThenElse(tie, hn::Set(d, 0x7fff), low);
    }
    store_u16<kStream>(high, &a.weight[i].bits);
    store_u16<kStream>(low, a.master + i);
  } else if constexpr (kStream) {
    hn::Stream(updated, df, a.master + i);
  } else {
    hn::StoreU(updated, df, a.master + i);
  }
  store_moment<P, 0, kTies && kTieArray == 0, kStream>(states[0], tie_signs, noise, a.state[0] + i);
  if constexpr (Rule::kStates > 1) {
    store_moment<P, 1, kTies && kTieArray == 1, kStream>(states[1], tie_signs, noise,
                                                         a.state[1] + i);
  }
}

/// The last elements, fewer than a vector, through copies on the stack: nothing beyond the range is read or written.
template <class Rule, class P>
void packed_tail(const Rule& rule, const PackedArrays<P>& a, std::size_t begin, std::size_t count,
                 VU32 noise) {
  constexpr std::size_t kLanes = hn::MaxLanes(F32());
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
  packed_vector<false>(rule, local, 0, noise);
  copy(a.master + begin, master);
  if constexpr (P::kSplit) {
    copy(a.weight + begin, weight);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    copy(a.state[k] + begin, state[k]);
  }
}

template <bool kStream, class Rule, class P>
void packed_range(const Rule& shared, const PackedArrays<P>& shared_arrays, const Noise noise,
                  std::size_t count) {
  const Rule rule = shared;  // copies nothing can alias: their values stay in registers
  const PackedArrays<P> a = shared_arrays;
  const std::size_t lanes = hn::Lanes(F32());
  const auto random = [noise](std::size_t i)
                          HWY_ATTR { return P::kExact ? hn::Zero(U32()) : noise.at(i); };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    packed_vector<kStream>(rule, a, i, random(i));
  }
  if (i < count) {
    packed_tail(rule, a, i, count - i, random(i));
  }
  if constexpr (kStream) {
    hwy::FlushStream();
  }
}

/// Whether every array that is written lies elsewhere than its source and takes aligned stores, as non-temporal ones
/// need them: in place they would write lines that the loads have brought.
template <class Rule, class P>
bool streams(const PackedArrays<P>& a) {
  const auto apart = [](const void* to, const void* from) {
    return to != from && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
  };
  bool all = apart(a.master, a.master_from) && (!P::kSplit || apart(a.weight, a.weight_from));
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
  const Noise noise(key, b.position + begin);
  if (streams<Rule>(a)) {
    packed_range<true>(rule, a, noise, count);
  } else {
    packed_range<false>(rule, a, noise, count);
  }
}

/// Updates `count` elements from `begin` on by the rule, their moments in `Moment`.
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
