// models/kernels/dropout.cpp — compiled once per SIMD target (foreach_target).
#include "models/kernels/dropout.hpp"

#include <algorithm>
#include <cmath>

#include "actors/kernels/update/rounding_key.hpp"
#include "models/kernels/parallel.hpp"
#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/dropout.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"
// Needs lanes-inl.hpp.
#include "models/kernels/dropout-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

template <class T>
void drop_typed(const DropMask& mask, std::int64_t rows, std::int64_t width, const T* from,
                const T* residual, T* to) {
  constexpr std::int64_t kRows = 32;
  parallel_blocks(rows, kRows, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      const DropRow drop(mask, r);
      const std::int64_t at = r * width;
      for_lanes(width, [&](auto d, auto c) HWY_ATTR {
        const auto kept = drop(d, c, load_f32(d, from + at + c));
        store_f32(d, residual == nullptr ? kept : hn::Add(load_f32(d, residual + at + c), kept),
                  to + at + c);
      });
    }
  });
}

void DropElements(const DropMask& mask, DType type, std::int64_t rows, std::int64_t width,
                  const void* from, const void* residual, void* to) {
  with_element(type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    drop_typed(mask, rows, width, static_cast<const T*>(from), static_cast<const T*>(residual),
               static_cast<T*>(to));
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(DropElements);

DropMask drop_mask(double rate, std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer,
                   DropPlace place) {
  TANDEM_CHECK(rate >= 0 && rate < 1, "something stays");
  if (rate == 0 || micro_batch < 0) {
    return {};
  }
  // Places of adapters differ by their uppermost bit, which no layer's number reaches.
  const auto which = static_cast<std::uint64_t>(place);
  const auto site = static_cast<std::uint64_t>(layer) << 2 | (which & 3) | which >> 2 << 63;
  const std::uint64_t drawn = mixed(mixed(seed) ^ static_cast<std::uint64_t>(micro_batch));
  const double dropped = std::round(std::ldexp(rate, 31));
  return {.key = mixed(drawn ^ site),
          .dropped = static_cast<std::uint32_t>(std::clamp(dropped, 1.0, 0x1p31 - 1)),
          .scale = static_cast<float>(1 / (1 - rate))};
}

void drop_elements(const DropMask& mask, DType type, std::int64_t rows, std::int64_t width,
                   const void* from, const void* residual, void* to) {
  HWY_DYNAMIC_DISPATCH(DropElements)(mask, type, rows, width, from, residual, to);
}
}  // namespace tandem
#endif
