// bench/adam/ceiling.cpp — see ceiling.hpp.
#include "bench/adam/ceiling.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/adam/ceiling.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace kernels = tandem::HWY_NAMESPACE;

template <bool kCastOut, class Gradient, class Weight>
void move(const AdamBuffers& b, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<float> d;
  const auto* gradient = static_cast<const Gradient*>(b.gradient);
  auto* weight = static_cast<Weight*>(b.weight);
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = begin; i + lanes <= end; i += lanes) {
    const auto g = kernels::load_f32(d, gradient + i);
    for (float* array : {b.master, b.exp_avg, b.exp_avg_sq}) {
      hn::StoreU(hn::Add(hn::LoadU(d, array + i), g), d, array + i);
    }
    if constexpr (kCastOut) {
      kernels::stream_f32(d, g, weight + i);
    }
  }
  hwy::FlushStream();
}

void move_fp32(const AdamBuffers& b, std::size_t begin, std::size_t end) {
  move<false, float, float>(b, begin, end);
}
void move_bf16(const AdamBuffers& b, std::size_t begin, std::size_t end) {
  move<true, kernels::Bf16Bits, kernels::Bf16Bits>(b, begin, end);
}

}  // namespace tandem::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::bench {

HWY_EXPORT(move_fp32);
HWY_EXPORT(move_bf16);

void move_only(const AdamBuffers& buffers, std::size_t begin, std::size_t end) {
  if (buffers.weight == nullptr) {
    HWY_DYNAMIC_DISPATCH(move_fp32)(buffers, begin, end);
  } else {
    HWY_DYNAMIC_DISPATCH(move_bf16)(buffers, begin, end);
  }
}

}  // namespace tandem::bench
#endif
