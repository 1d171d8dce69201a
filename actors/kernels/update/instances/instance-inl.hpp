// actors/kernels/update/instances/instance-inl.hpp — one update kernel, compiled once per SIMD
// target: an optimizer's rule in the update loop of a state layout.
//
// A source file defines three macros and includes this file, which Highway's foreach_target then
// includes again for every other target (hence no #pragma once):
//   TANDEM_UPDATE    the kernel's name in update_rules.hpp
//   TANDEM_STEP      the type of its step's constants
//   TANDEM_FRAME     the frame's function, called with (rule, rounding_bits, buffers, begin, count)
// Each kernel is a source file of its own, so that they compile in parallel.
#include "actors/kernels/update/update_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/instances/instance-inl.hpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/adagrad_rule-inl.hpp"
#include "actors/kernels/update/adam_rule-inl.hpp"
#include "actors/kernels/update/along_rule-inl.hpp"
#include "actors/kernels/update/lion_rule-inl.hpp"
#include "actors/kernels/update/sgd_rule-inl.hpp"
#include "actors/kernels/update/update-inl.hpp"
#include "actors/kernels/update/update_blocks-inl.hpp"
#include "actors/kernels/update/update_packed-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

static void update_instance(const TANDEM_STEP& step, std::uint32_t rounding_bits,
                            const UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  with_rule(step,
            [&](const auto& rule) { TANDEM_FRAME(rule, rounding_bits, buffers, begin, count); });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(update_instance);

void detail::TANDEM_UPDATE(const TANDEM_STEP& step, std::uint32_t rounding_bits,
                           const UpdateBuffers& buffers, std::size_t begin, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(update_instance)(step, rounding_bits, buffers, begin, count);
}

}  // namespace tandem
#endif
