// actors/kernels/optimizers/adam_rule-inl.hpp — Adam's rule per element, for the update loops
// (update/*-inl.hpp); compiled once per SIMD target.
// Invariant: the IEEE operations are those of optimizers.hpp, in that order, and none are fused.
#if defined(TANDEM_ACTORS_KERNELS_ADAM_RULE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_ADAM_RULE_INL
#undef TANDEM_ACTORS_KERNELS_ADAM_RULE_INL
#else
#define TANDEM_ACTORS_KERNELS_ADAM_RULE_INL
#endif

#include <cstddef>

#include "actors/kernels/optimizers/optimizers.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

template <bool kAdamW>
struct AdamRule {
  static constexpr std::size_t kStates = 2;
  AdamStep s;

  [[nodiscard]] HWY_INLINE float gradient_scale() const { return s.gradient_scale; }

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 g, VF32& exp_avg, VF32& exp_avg_sq) const {
    if constexpr (!kAdamW) {
      g = hn::Add(g, hn::Mul(hn::Set(d, s.decay), p));
    }
    const auto m =
        hn::Add(hn::Mul(hn::Set(d, s.beta1), exp_avg), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    const auto v = hn::Add(hn::Mul(hn::Set(d, s.beta2), exp_avg_sq),
                           hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
    exp_avg = m;
    exp_avg_sq = v;
    const auto denominator =
        hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, s.inverse_root_bias)), hn::Set(d, s.eps));
    auto update = hn::Mul(hn::Set(d, s.step_size), hn::Div(m, denominator));
    if constexpr (kAdamW) {
      update = hn::Add(update, hn::Mul(hn::Set(d, s.decay), p));
    }
    return hn::Sub(p, update);
  }
};

/// Calls `update` with the rule of the step.
template <class Update>
void with_rule(const AdamStep& step, const Update& update) {
  if (step.adamw) {
    update(AdamRule<true>{step});
  } else {
    update(AdamRule<false>{step});
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
