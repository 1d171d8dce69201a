// actors/kernels/simd_target.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/simd_target.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/simd_target.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

std::int64_t this_target() { return HWY_TARGET; }

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(this_target);

const char* simd_target() noexcept { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(this_target)()); }

bool has_simd() noexcept {
  const std::int64_t target = HWY_DYNAMIC_DISPATCH(this_target)();
  return target != HWY_EMU128 && target != HWY_SCALAR;
}

}  // namespace tandem
#endif
