// actors/kernels/adagrad.cpp — see optimizer_step.hpp. Compiled once per SIMD target by Highway's
// foreach_target.
#include "actors/kernels/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/adagrad.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

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

void adagrad_elements(const AdagradStep& step, const UpdateBuffers& buffers, std::size_t begin,
                      std::size_t count) {
  update_elements(AdagradRule{step}, buffers, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(adagrad_elements);

void detail::update_adagrad(const AdagradStep& step, const UpdateBuffers& buffers,
                            std::size_t begin, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(adagrad_elements)(step, buffers, begin, count);
}

}  // namespace tandem
#endif
