// actors/kernels/optimizers/along_rule-inl.hpp — the rule of a step along a direction (LAMB, Muon),
// for the update loops (update/*-inl.hpp); compiled once per SIMD target.
// Invariant: the IEEE operations are those of optimizers.hpp, in that order, and none are fused.
#if defined(TANDEM_ACTORS_KERNELS_ALONG_RULE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_ACTORS_KERNELS_ALONG_RULE_INL
#undef TANDEM_ACTORS_KERNELS_ALONG_RULE_INL
#else
#define TANDEM_ACTORS_KERNELS_ALONG_RULE_INL
#endif

#include <cstddef>

#include "actors/kernels/optimizers/optimizers.hpp"
#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

struct AlongRule {
  static constexpr std::size_t kStates = 0;
  AlongStep s;

  /// The direction has replaced the gradient in memory, and is scaled like it.
  [[nodiscard]] HWY_INLINE float gradient_scale() const { return s.rate; }

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 move, VF32&, VF32&) const {
    return hn::Sub(p, hn::Add(move, hn::Mul(hn::Set(d, s.decay), p)));
  }
};

/// Calls `update` with the rule of the step.
template <class Update>
void with_rule(const AlongStep& step, const Update& update) {
  update(AlongRule{step});
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
