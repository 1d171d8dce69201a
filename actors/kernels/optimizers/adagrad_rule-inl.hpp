// actors/kernels/optimizers/adagrad_rule-inl.hpp — Adagrad's rule per element, for the update loops
// (update/*-inl.hpp); compiled once per SIMD target.
// Invariant: the IEEE operations are those of optimizers.hpp, in that order, and none are fused.
#if defined(TANDEM_ACTORS_KERNELS_ADAGRAD_RULE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_ADAGRAD_RULE_INL
#undef TANDEM_ACTORS_KERNELS_ADAGRAD_RULE_INL
#else
#define TANDEM_ACTORS_KERNELS_ADAGRAD_RULE_INL
#endif

#include <cstddef>

#include "actors/kernels/optimizers/optimizers.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

struct AdagradRule {
  static constexpr std::size_t kStates = 1;
  AdagradStep s;

  [[nodiscard]] HWY_INLINE float gradient_scale() const { return s.gradient_scale; }

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 g, VF32& sum_sq, VF32&) const {
    g = hn::Add(g, hn::Mul(hn::Set(d, s.decay), p));
    sum_sq = hn::Add(sum_sq, hn::Mul(g, g));
    const auto denominator = hn::Add(hn::Sqrt(sum_sq), hn::Set(d, s.eps));
    return hn::Sub(p, hn::Mul(hn::Set(d, s.lr), hn::Div(g, denominator)));
  }
};

/// Calls `update` with the rule of the step.
template <class Update>
void with_rule(const AdagradStep& step, const Update& update) {
  update(AdagradRule{step});
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
