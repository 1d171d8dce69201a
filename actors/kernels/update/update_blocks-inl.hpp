// actors/kernels/update/update_blocks-inl.hpp — the update loop for 8-bit moments: a scale group at
// a time, because its new exponents are known only after its last element; compiled once per SIMD
// target.
//
// The group's new moments stay in the first-level cache as fp32, so memory is still read and
// written once. Invariants as in update-inl.hpp.
#if defined(TANDEM_ACTORS_KERNELS_UPDATE_BLOCKS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_UPDATE_BLOCKS_INL
#undef TANDEM_ACTORS_KERNELS_UPDATE_BLOCKS_INL
#else
#define TANDEM_ACTORS_KERNELS_UPDATE_BLOCKS_INL
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "actors/kernels/update/codes-inl.hpp"
#include "actors/kernels/update/optimizer_step.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// kSplitMaster: `master` is the remainder of the bf16 `weight`; else it is fp32, and no weight is
/// written.
template <bool kSplitMaster, class GradientType>
struct BlockPacking {
  using Master = std::conditional_t<kSplitMaster, std::uint16_t, float>;
  using Gradient = GradientType;
  static constexpr bool kSplit = kSplitMaster;
};

/// The addresses of a group's first element, and of its exponents, in each array. In place, an
/// array and its source are the same.
template <class P>
struct BlockArrays {
  const typename P::Gradient* gradient;
  const Bf16Bits* weight_from;
  const typename P::Master* master_from;
  const std::uint8_t* state_from[2];
  const std::uint8_t* scale_from[2];
  Bf16Bits* weight;
  typename P::Master* master;
  std::uint8_t* state[2];
  std::uint8_t* scale[2];

  void advance(std::size_t elements) {
    gradient += elements;
    master_from += elements;
    master += elements;
    if constexpr (P::kSplit) {
      weight_from += elements;
      weight += elements;
    }
  }
};

/// Loads, updates and stores master and weight of two vectors, and updates their moments `s0` and
/// `s1`.
template <class Rule, class P>
HWY_INLINE void block_pair(const Rule& rule, const BlockArrays<P>& a, std::size_t i, VF32& s0a,
                           VF32& s0b, VF32& s1a, VF32& s1b) {
  const F32 df;
  const U32 d;
  auto pa = hn::Zero(df), pb = hn::Zero(df), ga = hn::Zero(df), gb = hn::Zero(df);
  load_pair(a.gradient + i, ga, gb);
  const auto scale = hn::Set(df, rule.gradient_scale());
  ga = hn::Mul(ga, scale);
  gb = hn::Mul(gb, scale);
  if constexpr (P::kSplit) {
    load_masters(a.weight_from + i, a.master_from + i, pa, pb);
    pa = rule(df, pa, ga, s0a, s1a);
    pb = rule(df, pb, gb, s0b, s1b);
    auto sum_a = hn::Zero(d), sum_b = hn::Zero(d), low_a = hn::Zero(d), low_b = hn::Zero(d);
    bits_to_split(pa, pb, low_a, low_b);
    split_bits_near(low_a, sum_a);
    split_bits_near(low_b, sum_b);
    store_upper<false>(sum_a, sum_b, &a.weight[i].bits);
    store_lower<false>(low_a, low_b, a.master + i);
  } else {
    load_pair(a.master_from + i, pa, pb);
    hn::StoreU(rule(df, pa, ga, s0a, s1a), df, a.master + i);
    hn::StoreU(rule(df, pb, gb, s0b, s1b), df, a.master + i + hn::Lanes(df));
  }
}

/// Updates the bits of the greatest and the least magnitude so far. If not kSigned, only a NaN can
/// have a sign, and its bits are then above infinity's.
template <bool kSigned>
HWY_INLINE void note_magnitude(VF32 value, VU32& greatest, VU32& least) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
  const auto magnitude = kSigned ? hn::And(bits, hn::Set(d, kMagnitude)) : bits;
  greatest = hn::Max(greatest, magnitude);
  least = hn::Min(least, magnitude);
}

/// The greatest and least magnitudes of a group's moments: greatest, least, greatest, least.
using BlockRange = std::uint32_t[4];

/// Returns the greatest of the values at the same position in all 128-bit parts of a vector.
template <class D>
HWY_INLINE void greatest_of_blocks(D d, hn::Vec<D> v, std::uint32_t* to) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    greatest_of_blocks(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  }
}

/// Reduces the lanes of all four vectors at once. A least value is the complement of the greatest
/// complement.
HWY_INLINE void reduce_range(VU32 greatest0, VU32 least0, VU32 greatest1, VU32 least1,
                             BlockRange& range) {
  const U32 d;
  const hn::Repartition<std::uint64_t, U32> d64;
  const auto fold = [d](VU32 a, VU32 b) HWY_ATTR {
    return hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const auto of0 = hn::BitCast(d64, fold(greatest0, hn::Not(least0)));
  const auto of1 = hn::BitCast(d64, fold(greatest1, hn::Not(least1)));
  greatest_of_blocks(d,
                     hn::Max(hn::BitCast(d, hn::InterleaveLower(d64, of0, of1)),
                             hn::BitCast(d, hn::InterleaveUpper(d64, of0, of1))),
                     range);
  range[1] = ~range[1];
  range[3] = ~range[3];
}

/// Writes the codes of a group's new moments, given their exponents. kOrdinary: no code is at an
/// end of its range. That is nearly always so, and gives the same codes with half the work.
template <bool kOrdinary, class Rule, class P>
HWY_INLINE void store_codes(const float (&moments)[2][kScaleGroup], const BlockArrays<P>& a,
                            const std::uint8_t (&scales)[2], const RoundingBits rounding_bits) {
  const F32 df;
  const std::size_t lanes = hn::Lanes(df);
  static_assert(kScaleGroup % (4 * hn::MaxLanes(F32())) == 0);
  auto unmixed = rounding_bits.unmixed(0);
  for (std::size_t i = 0; i < kScaleGroup; i += 4 * lanes) {
    const auto r0 = RoundingBits::next(unmixed), r1 = RoundingBits::next(unmixed);
    const auto r2 = RoundingBits::next(unmixed), r3 = RoundingBits::next(unmixed);
    const auto store = [&]<bool kSigned>(std::bool_constant<kSigned>) HWY_ATTR {
      constexpr std::size_t kArray = kSigned ? 0 : 1;
      const float* from = moments[kArray] + i;
      store_four_codes<kOrdinary, kSigned>(
          hn::Load(df, from), hn::Load(df, from + lanes), hn::Load(df, from + 2 * lanes),
          hn::Load(df, from + 3 * lanes), r0, r1, r2, r3, scales[kArray], a.state[kArray] + i);
    };
    store(std::true_type());
    if constexpr (Rule::kStates > 1) {
      store(std::false_type());
    }
  }
}

/// Updates a whole group. `rounding_bits` counts its elements from 0.
template <class Rule, class P>
void update_block(const Rule& shared, const BlockArrays<P>& shared_arrays,
                  const RoundingBits rounding_bits) {
  const Rule rule = shared;  // copies nothing can alias: their values stay in registers
  const BlockArrays<P> a = shared_arrays;
  const F32 df;
  const U32 d;
  const std::size_t lanes = hn::Lanes(df);
  HWY_ALIGN float moments[2][kScaleGroup];
  auto greatest0 = hn::Zero(d), greatest1 = hn::Zero(d);
  auto least0 = hn::Set(d, kMagnitude), least1 = least0;
  const std::uint8_t scale0 = *a.scale_from[0];
  const std::uint8_t scale1 = Rule::kStates > 1 ? *a.scale_from[1] : std::uint8_t{0};
  for (std::size_t i = 0; i < kScaleGroup; i += 2 * lanes) {
    auto s0a = hn::Zero(df), s0b = hn::Zero(df), s1a = hn::Zero(df), s1b = hn::Zero(df);
    load_codes<true>(a.state_from[0] + i, scale0, s0a, s0b);
    if constexpr (Rule::kStates > 1) {
      load_codes<false>(a.state_from[1] + i, scale1, s1a, s1b);
    }
    block_pair(rule, a, i, s0a, s0b, s1a, s1b);
    hn::Store(s0a, df, moments[0] + i);
    hn::Store(s0b, df, moments[0] + i + lanes);
    note_magnitude<true>(s0a, greatest0, least0);
    note_magnitude<true>(s0b, greatest0, least0);
    if constexpr (Rule::kStates > 1) {
      hn::Store(s1a, df, moments[1] + i);
      hn::Store(s1b, df, moments[1] + i + lanes);
      note_magnitude<false>(s1a, greatest1, least1);
      note_magnitude<false>(s1b, greatest1, least1);
    }
  }
  BlockRange range;
  reduce_range(greatest0, least0, greatest1, least1, range);
  std::uint8_t scales[2] = {Code<true>::scale(range[0]), 0};
  bool ordinary = Code<true>::is_ordinary(scales[0], range[1]);
  if constexpr (Rule::kStates > 1) {
    scales[1] = Code<false>::scale(range[2]);
    ordinary &= Code<false>::is_ordinary(scales[1], range[3]);
    *a.scale[1] = scales[1];
  }
  *a.scale[0] = scales[0];
  if (HWY_LIKELY(ordinary)) {
    store_codes<true, Rule>(moments, a, scales, rounding_bits);
  } else {
    store_codes<false, Rule>(moments, a, scales, rounding_bits);
  }
}

/// Updates the shard's last elements, fewer than a group, through copies on the stack. Missing
/// elements count as 0.
template <class Rule, class P>
void update_last_block(const Rule& rule, const BlockArrays<P>& a, const RoundingBits rounding_bits,
                       std::size_t count) {
  typename P::Gradient gradient[kScaleGroup] = {};
  Bf16Bits weight[kScaleGroup] = {};
  typename P::Master master[kScaleGroup] = {};
  std::uint8_t state[2][kScaleGroup] = {};
  BlockArrays<P> local = {gradient,
                          weight,
                          master,
                          {state[0], state[1]},
                          {a.scale_from[0], a.scale_from[1]},
                          weight,
                          master,
                          {state[0], state[1]},
                          {a.scale[0], a.scale[1]}};
  std::copy_n(a.gradient, count, gradient);
  std::copy_n(a.master_from, count, master);
  if constexpr (P::kSplit) {
    std::copy_n(a.weight_from, count, weight);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    std::copy_n(a.state_from[k], count, state[k]);
  }
  update_block(rule, local, rounding_bits);
  std::copy_n(master, count, a.master);
  if constexpr (P::kSplit) {
    std::copy_n(weight, count, a.weight);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    std::copy_n(state[k], count, a.state[k]);
  }
}

template <class P, class Rule>
void update_blocks_as(const Rule& shared, std::uint32_t key, const UpdateBuffers& b,
                      std::size_t begin, std::size_t count) {
  const Rule rule = shared;
  BlockArrays<P> a = {};
  const auto place = []<class T>(void* array, const void* from, std::size_t first, T*& to,
                                 const T*& source) {
    to = static_cast<T*>(array) + first;
    source = from == nullptr ? to : static_cast<const T*>(from) + first;
  };
  a.gradient = static_cast<const typename P::Gradient*>(b.gradient) + begin;
  place(b.master, b.from.master, begin, a.master, a.master_from);
  if constexpr (P::kSplit) {
    place(b.weight, b.from.weight, begin, a.weight, a.weight_from);
  }
  for (std::size_t k = 0; k < Rule::kStates; ++k) {
    place(b.state[k], b.from.state[k], begin, a.state[k], a.state_from[k]);
    place(b.scale[k], b.from.scale[k], begin / kScaleGroup, a.scale[k], a.scale_from[k]);
  }
  for (std::size_t i = 0; i < count; i += kScaleGroup) {
    const RoundingBits rounding_bits(key, b.position + begin + i);
    if (count - i >= kScaleGroup) {
      update_block(rule, a, rounding_bits);
    } else {
      update_last_block(rule, a, rounding_bits, count - i);
    }
    a.advance(kScaleGroup);
    for (std::size_t k = 0; k < Rule::kStates; ++k) {
      a.state[k] += kScaleGroup;
      a.state_from[k] += kScaleGroup;
      ++a.scale[k];
      ++a.scale_from[k];
    }
  }
}

/// Updates `count` elements from `begin` on, which begins a group, by the rule.
template <class Rule>
void update_block_elements(const Rule& rule, std::uint32_t key, const UpdateBuffers& b,
                           std::size_t begin, std::size_t count) {
  if (b.weight == nullptr) {
    return update_blocks_as<BlockPacking<false, float>>(rule, key, b, begin, count);
  }
  if (b.gradient_type == DType::kF32) {
    return update_blocks_as<BlockPacking<true, float>>(rule, key, b, begin, count);
  }
  update_blocks_as<BlockPacking<true, Bf16Bits>>(rule, key, b, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
