// actors/kernels/update/instances/lion.cpp — compiled once per SIMD target
// by Highway's foreach_target.
#include "actors/kernels/update/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/instances/lion.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/lion_rule-inl.hpp"
#include "actors/kernels/update/update-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

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
