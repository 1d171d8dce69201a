// actors/kernels/sgd.cpp — see optimizer_step.hpp. Compiled once per SIMD target by Highway's
// foreach_target.
#include "actors/kernels/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/sgd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

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

void sgd_elements(const SgdStep& step, const UpdateBuffers& buffers, std::size_t begin,
                  std::size_t count) {
  if (step.momentum == 0.0F) {
    update_elements(SgdRule<false, false>{step}, buffers, begin, count);
  } else if (step.nesterov) {
    update_elements(SgdRule<true, true>{step}, buffers, begin, count);
  } else {
    update_elements(SgdRule<true, false>{step}, buffers, begin, count);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(sgd_elements);

void detail::update_sgd(const SgdStep& step, const UpdateBuffers& buffers, std::size_t begin,
                        std::size_t count) {
  HWY_DYNAMIC_DISPATCH(sgd_elements)(step, buffers, begin, count);
}

}  // namespace tandem
#endif
