// actors/kernels/optimizers/lion_rule-inl.hpp — Lion's rule per element, for the update loops
// (update/*-inl.hpp); compiled once per SIMD target.
// Invariant: the IEEE operations are those of optimizers.hpp, in that order, and none are fused.
#if defined(TANDEM_ACTORS_KERNELS_LION_RULE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_LION_RULE_INL
#undef TANDEM_ACTORS_KERNELS_LION_RULE_INL
#else
#define TANDEM_ACTORS_KERNELS_LION_RULE_INL
#endif

#include <cstddef>

#include "actors/kernels/optimizers/optimizers.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

struct LionRule {
  static constexpr std::size_t kStates = 1;
  LionStep s;

  [[nodiscard]] HWY_INLINE float gradient_scale() const { return s.gradient_scale; }

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 g, VF32& exp_avg, VF32&) const {
    const auto c =
        hn::Add(hn::Mul(hn::Set(d, s.beta1), exp_avg), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    exp_avg =
        hn::Add(hn::Mul(hn::Set(d, s.beta2), exp_avg), hn::Mul(hn::Set(d, s.one_minus_beta2), g));
    // A value that is neither above nor below zero is zero, or a NaN that must not vanish.
    const auto moves = hn::Gt(hn::Abs(c), hn::Zero(d));
    const auto direction = hn::IfThenElse(moves, hn::CopySign(hn::Set(d, s.lr), c), c);
    return hn::Sub(p, hn::Add(direction, hn::Mul(hn::Set(d, s.decay), p)));
  }
};

/// Calls `update` with the rule of the step.
template <class Update>
void with_rule(const LionStep& step, const Update& update) {
  update(LionRule{step});
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
