// actors/kernels/update/update_element-inl.hpp — an update's pass for the threads of a GPU: one
// element per thread, or a scale group of 8-bit state per team of threads. It uses the rules and
// layouts of the SIMD update loops, so it has their bits.
//
// The host chooses the compiled variant (carry_out_pass); a Launch decides how threads share the
// elements. So a test can run all of a GPU's pass on the CPU, except for the indices.
// Invariant: nothing beyond a range is read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>

// clang-format off
#include "actors/kernels/update/one_lane-inl.hpp"  // before the files that use it
// clang-format on
#include "actors/kernels/optimizers/rules-inl.hpp"
#include "actors/kernels/update/packed-inl.hpp"
#include "actors/kernels/update/rounding_key.hpp"
#include "actors/kernels/update/update_pass.hpp"

namespace tandem::HWY_NAMESPACE {

HWY_INLINE VF32 load_as(DType type, const void* array, std::size_t i) {
  const F32 d;
  switch (type) {
    case DType::kBF16:
      return load_f32(d, static_cast<const Bf16Bits*>(array) + i);
    case DType::kF16:
      return load_f32(d, static_cast<const F16Bits*>(array) + i);
    default:
      return load_f32(d, static_cast<const float*>(array) + i);
  }
}

HWY_INLINE void store_as(DType type, VF32 value, void* array, std::size_t i) {
  const F32 d;
  switch (type) {
    case DType::kBF16:
      return store_f32(d, value, static_cast<Bf16Bits*>(array) + i);
    case DType::kF16:
      return store_f32(d, value, static_cast<F16Bits*>(array) + i);
    default:
      return store_f32(d, value, static_cast<float*>(array) + i);
  }
}

template <class Moment>
HWY_INLINE VF32 load_moment(const void* array, std::size_t i) {
  return load_f32(F32(), static_cast<const Moment*>(array) + i);
}

template <std::size_t kArray>
HWY_INLINE void store_moment(VF32 value, VU32 /*rounding_bits*/, float* to) {
  store_f32(F32(), value, to);
}
template <std::size_t kArray>
HWY_INLINE void store_moment(VF32 value, VU32 rounding_bits, Bf16Bits* to) {
  const auto random = bits_of_array<kArray>(rounding_bits);
  const VU32 rounded =  // of two moments the second is a mean of squares
      kArray == 1 ? round_to_bf16_above_zero(value, random) : round_to_bf16(value, random);
  to->bits = static_cast<std::uint16_t>(rounded.value >> 16);
}

/// Returns the master of an element. First copies the model weight to the backup, if there is one.
template <bool kSplit>
HWY_INLINE VF32 take_master(const PassBuffers& pass, std::size_t i, VU32 ties) {
  const UpdateBuffers& b = pass.buffers;
  if constexpr (kSplit) {
    const std::uint32_t high = static_cast<const std::uint16_t*>(b.from.weight)[i];
    const std::uint32_t low = static_cast<const std::uint16_t*>(b.from.master)[i];
    if (pass.backup != nullptr) {
      static_cast<std::uint16_t*>(pass.backup)[i] = static_cast<std::uint16_t>(high);
    }
    return join_master(VU32{high << 16 | low}, ties);
  } else {
    const float master = static_cast<const float*>(b.from.master)[i];
    if (pass.backup != nullptr) {
      static_cast<float*>(pass.backup)[i] = master;
    }
    return VF32{master};
  }
}

/// Writes the new master and the weight that is cast from it. If `keeps_ties`, returns where a
/// split master is a tie that was rounded down.
template <bool kSplit>
HWY_INLINE hn::Mask<U32> put_master(const PassBuffers& pass, std::size_t i, VF32 master,
                                    bool keeps_ties) {
  const UpdateBuffers& b = pass.buffers;
  hn::Mask<U32> tie{false};
  if constexpr (kSplit) {
    VU32 sum{0};
    VU32 low = bits_to_split(master);
    if (keeps_ties) {
      tie = split_bits(low, sum);
    } else {
      split_bits_near(low, sum);
    }
    static_cast<std::uint16_t*>(b.weight)[i] = static_cast<std::uint16_t>(sum.value >> 16);
    static_cast<std::uint16_t*>(b.master)[i] = static_cast<std::uint16_t>(low.value);
  } else {
    static_cast<float*>(b.master)[i] = master.value;
    if (b.weight != nullptr) {
      store_as(b.weight_type, master, b.weight, i);
    }
  }
  return tie;
}

/// Updates an element in the layouts fp32, split and bf16. `rounding_bits` counts from the range's
/// first element, number `first`.
template <class Rule, class Moment, bool kSplit>
HWY_INLINE void update_element(const Rule& rule, const PassBuffers& pass,
                               RoundingBits rounding_bits, std::size_t first, std::size_t i) {
  const F32 d;
  const UpdateBuffers& b = pass.buffers;
  constexpr bool kTies = kSplit && std::is_same<Moment, float>::value;
  auto s0 = hn::Zero(d);
  auto s1 = hn::Zero(d);
  if constexpr (Rule::kStates > 0) {
    s0 = load_moment<Moment>(b.from.state[0], i);
  }
  if constexpr (Rule::kStates > 1) {
    s1 = load_moment<Moment>(b.from.state[1], i);
  }
  VF32& tied = Rule::kStates > 1 ? s1 : s0;
  VU32 ties{kNoTie};
  if constexpr (kTies) {
    ties = take_ties(tied);
  }
  const auto p = take_master<kSplit>(pass, i, ties);
  const auto g =
      hn::Mul(load_as(b.gradient_type, b.gradient, i), hn::Set(d, rule.gradient_scale()));
  const auto tie = put_master<kSplit>(pass, i, rule(d, p, g, s0, s1), kTies);
  if constexpr (kTies) {
    tied = put_tie(tie, tied);
  }
  const auto random = rounding_bits.at(i - first);
  if constexpr (Rule::kStates > 0) {
    store_moment<0>(s0, random, static_cast<Moment*>(b.state[0]) + i);
  }
  if constexpr (Rule::kStates > 1) {
    store_moment<1>(s1, random, static_cast<Moment*>(b.state[1]) + i);
  }
}

/// Updates the scale group of 8-bit state that begins at element `begin`; `rounding_bits` counts
/// its elements from 0. `count` of the elements exist; missing ones count as 0. A Team shares the
/// kScaleGroup elements: each of its members has the kElements elements first() + k * kMembers.
/// greatest() waits for all members and returns the greatest of their numbers.
template <class Rule, bool kSplit, class Team>
HWY_INLINE void update_block(const Rule& rule, const PassBuffers& pass, RoundingBits rounding_bits,
                             std::size_t begin, std::size_t count, Team team) {
  const F32 d;
  const UpdateBuffers& b = pass.buffers;
  constexpr bool kTwo = Rule::kStates > 1;
  constexpr unsigned kElements = kScaleGroup / Team::kMembers;
  VF32 moments[2][kElements];
  std::uint32_t greatest[2] = {0, 0};
  const std::size_t block = begin / kScaleGroup;
  const std::uint8_t scale0 = b.from.scale[0][block];
  const std::uint8_t scale1 = kTwo ? b.from.scale[1][block] : std::uint8_t{0};
  const auto* codes0 = static_cast<const std::uint8_t*>(b.from.state[0]);
  // null: there is one moment
  const auto* codes1 = static_cast<const std::uint8_t*>(b.from.state[1]);
  for (unsigned k = 0; k < kElements; ++k) {
    const std::size_t at = team.first() + k * Team::kMembers;
    const bool there = at < count;
    const std::uint8_t missing = 0;
    auto s0 = Code<true>::load(there ? codes0 + begin + at : &missing, scale0);
    auto s1 = hn::Zero(d);
    if constexpr (kTwo) {
      s1 = Code<false>::load(there ? codes1 + begin + at : &missing, scale1);
    }
    const auto scale = hn::Set(d, rule.gradient_scale());
    if (there) {
      const auto g = hn::Mul(load_as(b.gradient_type, b.gradient, begin + at), scale);
      const auto p = take_master<kSplit>(pass, begin + at, VU32{kNoTie});
      put_master<kSplit>(pass, begin + at, rule(d, p, g, s0, s1), false);
    } else {
      (void)rule(d, hn::Zero(d), hn::Mul(hn::Zero(d), scale), s0, s1);
    }
    moments[0][k] = s0;
    moments[1][k] = s1;
    const auto raise = [](std::uint32_t& to, VF32 value) {
      const std::uint32_t magnitude = hn::BitCast(U32(), value).value & kMagnitude;
      to = magnitude > to ? magnitude : to;
    };
    raise(greatest[0], s0);
    raise(greatest[1], s1);
  }
  const std::uint8_t new0 = Code<true>::scale(team.greatest(greatest[0]));
  const std::uint8_t new1 = Code<false>::scale(kTwo ? team.greatest(greatest[1]) : 0);
  if (team.first() == 0) {
    b.scale[0][block] = new0;
    if constexpr (kTwo) {
      b.scale[1][block] = new1;
    }
  }
  for (unsigned k = 0; k < kElements; ++k) {
    const std::size_t at = team.first() + k * Team::kMembers;
    if (at >= count) {
      break;
    }
    const auto random = rounding_bits.at(at);
    const auto put = [&](VU32 code, void* codes) {
      static_cast<std::uint8_t*>(codes)[begin + at] = static_cast<std::uint8_t>(code.value);
    };
    put(Code<true>::of<false>(moments[0][k], bits_of_array<0>(random), new0), b.state[0]);
    if constexpr (kTwo) {
      put(Code<false>::of<false>(moments[1][k], bits_of_array<1>(random), new1), b.state[1]);
    }
  }
}

/// Restores the model weight from before a speculative pass (UpdatePass::kRollback): the backup,
/// bit for bit, or a cast of the master.
struct Restored {
  void* to = nullptr;
  const void* from = nullptr;
  DType type = DType::kF32;  // of the model weight
  bool is_cast = false;

  explicit Restored(const UpdatedUnit& unit)
      : to(unit.model_weight()),
        from(unit.backs_up_weight() ? unit.backup() : unit.buffers.master),
        type(unit.weight_is_master() ? DType::kF32 : unit.buffers.weight_type),
        is_cast(!unit.backs_up_weight()) {}
};

HWY_INLINE void restore_element(const Restored& restored, std::size_t i) {
  if (restored.is_cast) {
    store_as(restored.type, load_as(DType::kF32, restored.from, i), restored.to, i);
  } else if (restored.type == DType::kF32) {
    static_cast<std::uint32_t*>(restored.to)[i] =
        static_cast<const std::uint32_t*>(restored.from)[i];
  } else {
    static_cast<std::uint16_t*>(restored.to)[i] =
        static_cast<const std::uint16_t*>(restored.from)[i];
  }
}

// --- the variants that are compiled for optimizers and layouts. A Launch takes the elements
//     [first, first + count):
//   elements<Rule, Moment, kSplit>(rule, pass, rounding_bits, first, count)
//   blocks<Rule, kSplit>(rule, pass, rounding_bits, first, count)
//                                        whole groups, except for the shard's last one
//   restore(restored, first, count)

/// Sets each source that is null to the array itself, which is then updated in place.
inline void fill_sources(UpdateBuffers& b) {
  const auto fill = [](const auto*& from, const auto* array) {
    from = from == nullptr ? array : from;
  };
  fill(b.from.master, b.master);
  fill(b.from.weight, b.weight);
  for (std::size_t k = 0; k < 2; ++k) {
    fill(b.from.state[k], b.state[k]);
    fill(b.from.scale[k], b.scale[k]);
  }
}

/// Runs the pass over one range, in the layouts that supports() allows.
template <class Launch>
struct RangeOfPass {
  const PassBuffers& pass;
  std::uint64_t rounding_bits;
  std::size_t begin;
  std::size_t end;
  Launch& launch;

  template <class Step>
  void operator()(const Step& step) const {
    with_rule(step, [&](const auto& rule) { this->template choose<Step>(rule); });
  }

  template <class Step, class Rule>
  void choose(const Rule& rule) const {
    const UpdateBuffers& b = pass.buffers;
    const bool half = b.weight_is_half();
    for_rounding_keys(
        rounding_bits, b.position, begin, end,
        [&](std::uint32_t key, std::size_t first, std::size_t count) {
          const RoundingBits random(key, b.position + first);
          if (b.layout == StateLayout::kFp32) {
            elements<float, false>(rule, random, first, count);
          }
          if constexpr (Step::traits().supports(StateLayout::kSplit)) {
            if (b.layout == StateLayout::kSplit) {
              elements<float, true>(rule, random, first, count);
            }
          }
          if constexpr (Step::traits().supports(StateLayout::kBf16)) {
            if (b.layout == StateLayout::kBf16) {
              half ? elements<Bf16Bits, true>(rule, random, first, count)
                   : elements<Bf16Bits, false>(rule, random, first, count);
            }
          }
          if constexpr (Step::traits().supports(StateLayout::kInt8)) {
            if (b.layout == StateLayout::kInt8) {
              half ? launch.template blocks<Rule, true>(rule, pass, random, first, count)
                   : launch.template blocks<Rule, false>(rule, pass, random, first, count);
            }
          }
        });
  }

  template <class Moment, bool kSplit, class Rule>
  void elements(const Rule& rule, RoundingBits random, std::size_t first, std::size_t count) const {
    launch.template elements<Rule, Moment, kSplit>(rule, pass, random, first, count);
  }
};

/// Does what run_update_pass() does, through `launch`. Host only.
template <class Launch>
void carry_out_pass(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                    std::size_t begin, std::size_t end, Launch& launch) {
  PassBuffers work(pass, unit);
  fill_sources(work.buffers);
  visit_ranges(
      unit.ranges, begin, end, [&](const UpdateRange& range, std::size_t first, std::size_t last) {
        if (pass == UpdatePass::kRollback) {
          launch.restore(Restored(unit), first, last - first);
        } else {
          const UpdateStep& step = steps[range.group];
          std::visit(RangeOfPass<Launch>{work, step.rounding_bits, first, last, launch}, step.rule);
        }
      });
}

}  // namespace tandem::HWY_NAMESPACE
