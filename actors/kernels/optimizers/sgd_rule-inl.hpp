// actors/kernels/optimizers/sgd_rule-inl.hpp — SGD's rule per element, for the update loops
// (update/*-inl.hpp); compiled once per SIMD target.
// Invariant: the IEEE operations are those of optimizers.hpp, in that order, and none are fused.
#if defined(TANDEM_ACTORS_KERNELS_SGD_RULE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_SGD_RULE_INL
#undef TANDEM_ACTORS_KERNELS_SGD_RULE_INL
#else
#define TANDEM_ACTORS_KERNELS_SGD_RULE_INL
#endif

#include <cstddef>

#include "actors/kernels/optimizers/optimizers.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

template <bool kMomentum, bool kNesterov>
struct SgdRule {
  static constexpr std::size_t kStates = kMomentum ? 1 : 0;
  SgdStep s;

  [[nodiscard]] HWY_INLINE float gradient_scale() const { return s.gradient_scale; }

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 g, VF32& buffer, VF32&) const {
    g = hn::Add(g, hn::Mul(hn::Set(d, s.decay), p));
    if constexpr (kMomentum) {
      const auto momentum = hn::Set(d, s.momentum);
      const auto averaged =
          hn::Add(hn::Mul(momentum, buffer), hn::Mul(hn::Set(d, s.one_minus_dampening), g));
      buffer = s.first ? g : averaged;
      g = kNesterov ? hn::Add(g, hn::Mul(momentum, buffer)) : buffer;
    }
    return hn::Sub(p, hn::Mul(hn::Set(d, s.lr), g));
  }
};

/// Calls `update` with the rule of the step.
template <class Update>
void with_rule(const SgdStep& step, const Update& update) {
  if (step.momentum == 0.0F) {
    update(SgdRule<false, false>{step});
  } else if (step.nesterov) {
    update(SgdRule<true, true>{step});
  } else {
    update(SgdRule<true, false>{step});
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
