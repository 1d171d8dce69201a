// actors/kernels/update/instances/lion_int8.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/update/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/instances/lion_int8.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/lion_rule-inl.hpp"
#include "actors/kernels/update/update_blocks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

void lion_int8_elements(const LionStep& step, std::uint32_t key, const UpdateBuffers& buffers,
                        std::size_t begin, std::size_t count) {
  update_block_elements(LionRule{step}, key, buffers, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(lion_int8_elements);

void detail::update_lion_int8(const LionStep& step, std::uint32_t rounding_bits,
                              const UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(lion_int8_elements)(step, rounding_bits, buffers, begin, count);
}

}  // namespace tandem
#endif
