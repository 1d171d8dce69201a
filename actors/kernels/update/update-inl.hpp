// actors/kernels/update/update-inl.hpp — the update loop that all optimizers share: load, unscale
// and clip, the optimizer's rule, store, cast to the model weight; compiled once per SIMD target.
//
// The rules' sources include this file after hwy/highway.h and hwy/cache_control.h, inside their
// foreach_target passes (hence no #pragma once). A rule is a struct of constants with
//   static constexpr std::size_t kStates;     state arrays it reads and writes, 0 to 2
//   float gradient_scale() const;
//   Vec operator()(d, Vec p, Vec g, Vec& s0, Vec& s1) const;
//                                             the new master; s0 and s1 are updated in place
// Invariant: nothing here does arithmetic except gradient * gradient_scale, and nothing beyond a
// range is read or written.
#if defined(TANDEM_ACTORS_KERNELS_UPDATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_UPDATE_INL
#undef TANDEM_ACTORS_KERNELS_UPDATE_INL
#else
#define TANDEM_ACTORS_KERNELS_UPDATE_INL
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

/// The addresses of a range's first element in each array. In place, an array and its source are
/// the same.
template <class Gradient, class Weight>
struct UpdateArrays {
  const Gradient* gradient;
  const float* master_from;
  const float* state_from[2];
  float* master;
  float* state[2];
  Weight* weight;
};

struct NoWeight {};

/// The arrays whose stores are non-temporal. Such stores do not read a line that is only written,
/// and need whole, aligned vectors. They are used for the weight always, and for master and state
/// if they are not updated in place. kState: the state, while the master is updated in place.
enum class Stream : std::uint8_t { kNone, kWeight, kState, kAll };

template <bool kStream>
HWY_INLINE void put(F32 d, VF32 value, float* to) {
  if constexpr (kStream) {
    hn::Stream(value, d, to);
  } else {
    hn::StoreU(value, d, to);
  }
}

/// Updates one vector of elements. Returns the new master, which the caller casts to the model
/// weight.
template <Stream kStream, class Rule, class Gradient, class Weight>
HWY_INLINE VF32 update_vector(const Rule& rule, const UpdateArrays<Gradient, Weight>& a,
                              std::size_t i) {
  const F32 d;
  constexpr bool kAll = kStream == Stream::kAll;
  constexpr bool kState = kAll || kStream == Stream::kState;
  const auto p = hn::LoadU(d, a.master_from + i);
  const auto g = hn::Mul(load_f32(d, a.gradient + i), hn::Set(d, rule.gradient_scale()));
  auto s0 = hn::Zero(d);
  auto s1 = hn::Zero(d);
  if constexpr (Rule::kStates > 0) {
    s0 = hn::LoadU(d, a.state_from[0] + i);
  }
  if constexpr (Rule::kStates > 1) {
    s1 = hn::LoadU(d, a.state_from[1] + i);
  }
  const auto updated = rule(d, p, g, s0, s1);
  if constexpr (Rule::kStates > 0) {
    put<kState>(d, s0, a.state[0] + i);
  }
  if constexpr (Rule::kStates > 1) {
    put<kState>(d, s1, a.state[1] + i);
  }
  put<kAll>(d, updated, a.master + i);
  return updated;
}

/// Updates the last elements of a range, fewer than a vector, through copies on the stack. So
/// nothing beyond the range is read or written (another thread may own it), and the arithmetic is
/// that of full vectors.
template <class Rule, class Gradient, class Weight>
void update_tail(const Rule& rule, const UpdateArrays<Gradient, Weight>& a, std::size_t begin,
                 std::size_t count) {
  constexpr std::size_t kLanes = hn::MaxLanes(F32());
  Gradient gradient[kLanes] = {};
  float master[kLanes] = {};
  float state[2][kLanes] = {};
  const auto copy = [count](float* to, const float* from) {
    for (std::size_t k = 0; k < count; ++k) {
      to[k] = from[k];
    }
  };
  for (std::size_t k = 0; k < count; ++k) {
    gradient[k] = a.gradient[begin + k];
  }
  copy(master, a.master_from + begin);
  for (std::size_t array = 0; array < Rule::kStates; ++array) {
    copy(state[array], a.state_from[array] + begin);
  }
  const UpdateArrays<Gradient, Weight> local = {
      gradient, master, {state[0], state[1]}, master, {state[0], state[1]}, nullptr};
  const auto updated = update_vector<Stream::kNone>(rule, local, 0);
  copy(a.master + begin, master);
  for (std::size_t array = 0; array < Rule::kStates; ++array) {
    copy(a.state[array] + begin, state[array]);
  }
  if constexpr (!std::is_same_v<Weight, NoWeight>) {
    Weight weight[kLanes];
    store_f32(F32(), updated, weight);
    for (std::size_t k = 0; k < count; ++k) {
      a.weight[begin + k] = weight[k];
    }
  }
}

template <Stream kStream, class Rule, class Gradient, class Weight>
void update_range(const Rule& shared, const UpdateArrays<Gradient, Weight>& shared_arrays,
                  std::size_t count) {
  const F32 d;
  const Rule rule = shared;  // copies nothing can alias: their values stay in registers
  const UpdateArrays<Gradient, Weight> a = shared_arrays;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto updated = update_vector<kStream>(rule, a, i);
    if constexpr (!std::is_same_v<Weight, NoWeight>) {
      if constexpr (kStream != Stream::kNone) {
        stream_f32(d, updated, a.weight + i);
      } else {
        store_f32(d, updated, a.weight + i);
      }
    }
  }
  if (i < count) {
    update_tail(rule, a, i, count - i);
  }
  if constexpr (kStream != Stream::kNone) {
    hwy::FlushStream();
  }
}

HWY_INLINE bool aligned(const void* array) {
  return reinterpret_cast<std::uintptr_t>(array) % 64 == 0;
}

/// Returns whether every array of state differs from its source and is aligned.
template <class Rule, class Gradient, class Weight>
bool streams_state(const UpdateArrays<Gradient, Weight>& a) {
  bool all = true;
  for (std::size_t array = 0; array < Rule::kStates; ++array) {
    all = all && a.state[array] != a.state_from[array] && aligned(a.state[array]);
  }
  return all;
}

template <class Rule, class Gradient>
void update_typed_gradient(const Rule& rule, const UpdateBuffers& b, std::size_t begin,
                           std::size_t count) {
  const auto run = [&]<class Weight>(Weight* weight) {
    UpdateArrays<Gradient, Weight> a = {};
    a.gradient = static_cast<const Gradient*>(b.gradient) + begin;
    const auto arrays = [begin](void* array, const void* from, float*& to, const float*& source) {
      to = static_cast<float*>(array) + begin;
      source = from == nullptr ? to : static_cast<const float*>(from) + begin;
    };
    arrays(b.master, b.from.master, a.master, a.master_from);
    for (std::size_t k = 0; k < Rule::kStates; ++k) {
      arrays(b.state[k], b.from.state[k], a.state[k], a.state_from[k]);
    }
    a.weight = weight;
    if constexpr (std::is_same_v<Weight, NoWeight>) {
      if (Rule::kStates > 0 && streams_state<Rule>(a)) {
        return update_range<Stream::kState>(rule, a, count);
      }
    } else {
      if (streams_state<Rule>(a) && a.master != a.master_from && aligned(a.master) &&
          aligned(weight)) {
        return update_range<Stream::kAll>(rule, a, count);
      }
      if (aligned(weight)) {
        return update_range<Stream::kWeight>(rule, a, count);
      }
    }
    update_range<Stream::kNone>(rule, a, count);
  };
  // Each combination costs compile time for each target; 16-bit gradients come with weights of
  // their type only.
  if constexpr (!std::is_same_v<Gradient, float>) {
    return run(static_cast<Gradient*>(b.weight) + begin);
  } else if (b.weight == nullptr) {
    return run(static_cast<NoWeight*>(nullptr));
  } else if (b.weight_type == DType::kF32) {
    return run(static_cast<float*>(b.weight) + begin);
  } else if (b.weight_type == DType::kBF16) {
    return run(static_cast<Bf16Bits*>(b.weight) + begin);
  } else {
    return run(static_cast<F16Bits*>(b.weight) + begin);
  }
}

/// Updates `count` elements from `begin` on by the rule. Nothing is rounded stochastically; only
/// the loops of other layouts use the rounding bits.
template <class Rule>
void update_elements(const Rule& rule, std::uint32_t /*rounding_bits*/, const UpdateBuffers& b,
                     std::size_t begin, std::size_t count) {
  switch (b.gradient_type) {
    case DType::kF32:
      return update_typed_gradient<Rule, float>(rule, b, begin, count);
    case DType::kBF16:
      return update_typed_gradient<Rule, Bf16Bits>(rule, b, begin, count);
    case DType::kF16:
      return update_typed_gradient<Rule, F16Bits>(rule, b, begin, count);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
