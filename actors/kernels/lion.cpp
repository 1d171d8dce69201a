// actors/kernels/lion.cpp — see optimizer_step.hpp. Compiled once per SIMD target by Highway's
// foreach_target.
#include "actors/kernels/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/lion.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

struct LionRule {
  static constexpr std::size_t kStates = 1;
  LionStep s;

  [[nodiscard]] HWY_INLINE float gradient_scale() const { return s.gradient_scale; }

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 g, VF32& exp_avg, VF32&) const {
    const auto c =
        hn::Add(hn::Mul(hn::Set(d, s.beta1), exp_avg), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    exp_avg =
        hn::Add(hn::Mul(hn::Set(d, s.beta2), exp_avg), hn::Mul(hn::Set(d, s.one_minus_beta2), g));
    // Neither above nor below zero: zero, or a NaN that must not vanish.
    const auto moves = hn::Gt(hn::Abs(c), hn::Zero(d));
    const auto direction = hn::IfThenElse(moves, hn::CopySign(hn::Set(d, s.lr), c), c);
    return hn::Sub(p, hn::Add(direction, hn::Mul(hn::Set(d, s.decay), p)));
  }
};

void lion_elements(const LionStep& step, const UpdateBuffers& buffers, std::size_t begin,
                   std::size_t count) {
  update_elements(LionRule{step}, buffers, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(lion_elements);

void detail::update_lion(const LionStep& step, const UpdateBuffers& buffers, std::size_t begin,
                         std::size_t count) {
  HWY_DYNAMIC_DISPATCH(lion_elements)(step, buffers, begin, count);
}

}  // namespace tandem
#endif
