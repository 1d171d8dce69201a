// actors/kernels/update/instances/adam_split.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/update/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/instances/adam_split.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/adam_rule-inl.hpp"
#include "actors/kernels/update/update_packed-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

void adam_split_elements(const AdamStep& step, const UpdateBuffers& buffers, std::size_t begin,
                         std::size_t count) {
  if (step.adamw) {
    update_packed_elements<float>(AdamRule<true>{step}, 0, buffers, begin, count);
  } else {
    update_packed_elements<float>(AdamRule<false>{step}, 0, buffers, begin, count);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(adam_split_elements);

void detail::update_adam_split(const AdamStep& step, const UpdateBuffers& buffers,
                               std::size_t begin, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(adam_split_elements)(step, buffers, begin, count);
}

}  // namespace tandem
#endif
