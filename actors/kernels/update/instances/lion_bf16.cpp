// actors/kernels/update/instances/lion_bf16.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/update/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/instances/lion_bf16.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/lion_rule-inl.hpp"
#include "actors/kernels/update/update_packed-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

void lion_bf16_elements(const LionStep& step, std::uint32_t key, const UpdateBuffers& buffers,
                        std::size_t begin, std::size_t count) {
  update_packed_elements<Bf16Bits>(LionRule{step}, key, buffers, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(lion_bf16_elements);

void detail::update_lion_bf16(const LionStep& step, std::uint32_t rounding_bits,
                              const UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(lion_bf16_elements)(step, rounding_bits, buffers, begin, count);
}

}  // namespace tandem
#endif
