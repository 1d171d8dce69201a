// actors/kernels/update/instances/sgd.cpp — compiled once per SIMD target
// by Highway's foreach_target.
#include "actors/kernels/update/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/instances/sgd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/sgd_rule-inl.hpp"
#include "actors/kernels/update/update-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

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
