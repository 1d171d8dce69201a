// actors/kernels/update/kernel-inl.hpp — one update kernel, compiled once per SIMD target: an
// optimizer's rule in the update loop of a state layout.
//
// CMake writes a source for each rule and layout, so that they compile in parallel
// (actors/CMakeLists.txt). It defines two macros and includes this file, which Highway's
// foreach_target then includes again for every other target (hence no #pragma once):
//   TANDEM_STEP      the constants of the optimizer's step
//   TANDEM_LAYOUT    a StateLayout; if the optimizer refuses the layout, the kernel is empty
#include "actors/kernels/update/update_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/kernel-inl.hpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/optimizers/rules-inl.hpp"
#include "actors/kernels/update/update-inl.hpp"
#include "actors/kernels/update/update_blocks-inl.hpp"
#include "actors/kernels/update/update_packed-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

template <StateLayout kLayout, class Rule>
void update_in_layout(const Rule& rule, std::uint32_t rounding_bits, const UpdateBuffers& buffers,
                      std::size_t begin, std::size_t count) {
  if constexpr (kLayout == StateLayout::kFp32) {
    update_elements(rule, rounding_bits, buffers, begin, count);
  } else if constexpr (kLayout == StateLayout::kSplit) {
    update_packed_elements<float>(rule, rounding_bits, buffers, begin, count);
  } else if constexpr (kLayout == StateLayout::kBf16) {
    update_packed_elements<Bf16Bits>(rule, rounding_bits, buffers, begin, count);
  } else {
    update_block_elements(rule, rounding_bits, buffers, begin, count);
  }
}

template <class Step, StateLayout kLayout>
void update_as(const Step& step, std::uint32_t rounding_bits, const UpdateBuffers& buffers,
               std::size_t begin, std::size_t count) {
  if constexpr (Step::traits().supports(kLayout)) {
    with_rule(step, [&](const auto& rule) {
      update_in_layout<kLayout>(rule, rounding_bits, buffers, begin, count);
    });
  }
}

static void update_instance(const TANDEM_STEP& step, std::uint32_t rounding_bits,
                            const UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  update_as<TANDEM_STEP, TANDEM_LAYOUT>(step, rounding_bits, buffers, begin, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(update_instance);

template <>
void detail::update_kernel<TANDEM_STEP, TANDEM_LAYOUT>(const TANDEM_STEP& step,
                                                       std::uint32_t rounding_bits,
                                                       const UpdateBuffers& buffers,
                                                       std::size_t begin, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(update_instance)(step, rounding_bits, buffers, begin, count);
}

}  // namespace tandem
#endif
