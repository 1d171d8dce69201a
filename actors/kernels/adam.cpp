// actors/kernels/adam.cpp — see adam.hpp. Compiled once per SIMD target by Highway's
// foreach_target.
#include "actors/kernels/adam.hpp"

#include <cmath>

#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/adam.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;

/// One vector of elements; returns the new master, which the caller casts out.
template <bool kAdamW, class Gradient>
HWY_INLINE hn::Vec<F32> update_vector(const AdamStep& s, const Gradient* gradient, float* master,
                                      float* exp_avg, float* exp_avg_sq) {
  const F32 d;
  const auto p = hn::LoadU(d, master);
  auto g = hn::Mul(load_f32(d, gradient), hn::Set(d, s.gradient_scale));
  if constexpr (!kAdamW) {
    g = hn::Add(g, hn::Mul(hn::Set(d, s.decay), p));
  }
  const auto m = hn::Add(hn::Mul(hn::Set(d, s.beta1), hn::LoadU(d, exp_avg)),
                         hn::Mul(hn::Set(d, s.one_minus_beta1), g));
  const auto v = hn::Add(hn::Mul(hn::Set(d, s.beta2), hn::LoadU(d, exp_avg_sq)),
                         hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
  hn::StoreU(m, d, exp_avg);
  hn::StoreU(v, d, exp_avg_sq);
  const auto denominator =
      hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, s.inverse_root_bias)), hn::Set(d, s.eps));
  auto update = hn::Mul(hn::Set(d, s.step_size), hn::Div(m, denominator));
  if constexpr (kAdamW) {
    update = hn::Add(update, hn::Mul(hn::Set(d, s.decay), p));
  }
  const auto updated = hn::Sub(p, update);
  hn::StoreU(updated, d, master);
  return updated;
}

struct NoWeight {};

/// The last elements of a range, fewer than a vector: through copies on the stack, so that nothing
/// beyond the range is read or written (a neighbour thread may own it) and the arithmetic is that
/// of the full vectors.
template <bool kAdamW, class Gradient, class Weight>
void update_tail(const AdamStep& step, const Gradient* gradient, float* master, float* exp_avg,
                 float* exp_avg_sq, Weight* weight, std::size_t count) {
  constexpr std::size_t kLanes = hn::MaxLanes(F32());
  Gradient g[kLanes] = {};
  float p[kLanes] = {};
  float m[kLanes] = {};
  float v[kLanes] = {};
  for (std::size_t i = 0; i < count; ++i) {
    g[i] = gradient[i];
    p[i] = master[i];
    m[i] = exp_avg[i];
    v[i] = exp_avg_sq[i];
  }
  const auto updated = update_vector<kAdamW>(step, g, p, m, v);
  for (std::size_t i = 0; i < count; ++i) {
    master[i] = p[i];
    exp_avg[i] = m[i];
    exp_avg_sq[i] = v[i];
  }
  if constexpr (!std::is_same_v<Weight, NoWeight>) {
    Weight w[kLanes];
    store_f32(F32(), updated, w);
    for (std::size_t i = 0; i < count; ++i) {
      weight[i] = w[i];
    }
  }
}

template <bool kAdamW, bool kStream, class Gradient, class Weight>
void update_range(const AdamStep& shared, const Gradient* gradient, float* master, float* exp_avg,
                  float* exp_avg_sq, Weight* weight, std::size_t count) {
  const F32 d;
  const AdamStep step = shared;  // a copy nothing can alias: its constants stay in registers
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto updated =
        update_vector<kAdamW>(step, gradient + i, master + i, exp_avg + i, exp_avg_sq + i);
    if constexpr (!std::is_same_v<Weight, NoWeight>) {
      if constexpr (kStream) {
        stream_f32(d, updated, weight + i);
      } else {
        store_f32(d, updated, weight + i);
      }
    }
  }
  if (i < count) {
    Weight* tail = weight;
    if constexpr (!std::is_same_v<Weight, NoWeight>) {
      tail += i;
    }
    update_tail<kAdamW>(step, gradient + i, master + i, exp_avg + i, exp_avg_sq + i, tail,
                        count - i);
  }
  if constexpr (kStream) {
    hwy::FlushStream();
  }
}

template <class Gradient, class Weight>
void update_typed(const AdamStep& step, const Gradient* gradient, float* master, float* exp_avg,
                  float* exp_avg_sq, Weight* weight, std::size_t count) {
  // Non-temporal stores spare the read of a line that is only written; they need whole, aligned
  // vectors.
  const bool stream =
      !std::is_same_v<Weight, NoWeight> && reinterpret_cast<std::uintptr_t>(weight) % 64 == 0;
  if (step.adamw) {
    if (stream) {
      update_range<true, true>(step, gradient, master, exp_avg, exp_avg_sq, weight, count);
    } else {
      update_range<true, false>(step, gradient, master, exp_avg, exp_avg_sq, weight, count);
    }
  } else if (stream) {
    update_range<false, true>(step, gradient, master, exp_avg, exp_avg_sq, weight, count);
  } else {
    update_range<false, false>(step, gradient, master, exp_avg, exp_avg_sq, weight, count);
  }
}

template <class Gradient>
void update_gradient(const AdamStep& step, const AdamBuffers& b, const Gradient* gradient,
                     std::size_t begin, std::size_t count) {
  float* master = b.master + begin;
  float* exp_avg = b.exp_avg + begin;
  float* exp_avg_sq = b.exp_avg_sq + begin;
  if (b.weight == nullptr) {
    NoWeight* const none = nullptr;
    update_typed(step, gradient, master, exp_avg, exp_avg_sq, none, count);
  } else if (b.weight_type == DType::kBF16) {
    update_typed(step, gradient, master, exp_avg, exp_avg_sq,
                 static_cast<Bf16Bits*>(b.weight) + begin, count);
  } else if (b.weight_type == DType::kF16) {
    update_typed(step, gradient, master, exp_avg, exp_avg_sq,
                 static_cast<F16Bits*>(b.weight) + begin, count);
  } else {
    update_typed(step, gradient, master, exp_avg, exp_avg_sq, static_cast<float*>(b.weight) + begin,
                 count);
  }
}

void update_elements(const AdamStep& step, const AdamBuffers& b, std::size_t begin,
                     std::size_t count) {
  if (b.gradient_type == DType::kBF16) {
    update_gradient(step, b, static_cast<const Bf16Bits*>(b.gradient) + begin, begin, count);
  } else if (b.gradient_type == DType::kF16) {
    update_gradient(step, b, static_cast<const F16Bits*>(b.gradient) + begin, begin, count);
  } else {
    update_gradient(step, b, static_cast<const float*>(b.gradient) + begin, begin, count);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(update_elements);

AdamStep AdamStep::make(const AdamConfig& config, std::int64_t step, double gradient_scale) {
  TANDEM_CHECK(step >= 1, "Adam's steps count from 1");
  double bias1 = 1.0;
  double bias2 = 1.0;
  if (config.bias_correction) {
    bias1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
    bias2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  }
  const double decay = config.adamw ? config.lr * config.weight_decay : config.weight_decay;
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .beta1 = static_cast<float>(config.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - config.beta2),
          .eps = static_cast<float>(config.eps),
          .step_size = static_cast<float>(config.lr / bias1),
          .inverse_root_bias = static_cast<float>(1.0 / std::sqrt(bias2)),
          .decay = static_cast<float>(decay),
          .adamw = config.adamw};
}

void adam_update(const AdamStep& step, const AdamBuffers& buffers, std::size_t begin,
                 std::size_t end) {
  TANDEM_CHECK(begin <= end, "a range runs forward");
  TANDEM_CHECK(
      begin == end || (buffers.master && buffers.exp_avg && buffers.exp_avg_sq && buffers.gradient),
      "Adam needs master, both moments and a gradient");
  HWY_DYNAMIC_DISPATCH(update_elements)(step, buffers, begin, end - begin);
}

}  // namespace tandem
#endif
