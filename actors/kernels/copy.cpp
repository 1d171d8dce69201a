// actors/kernels/copy.cpp — compiled for one SIMD target only, because a copy is bound by memory.
#include "actors/kernels/copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

namespace tandem {

namespace hn = hwy::HWY_NAMESPACE;

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* target = static_cast<std::uint8_t*>(to);
  const auto* source = static_cast<const std::uint8_t*>(from);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(target) % lanes;
  std::size_t i = misaligned == 0 ? 0 : std::min(bytes, lanes - misaligned);
  std::memcpy(target, source, i);
  for (; i + lanes <= bytes; i += lanes) {
    hn::Stream(hn::LoadU(d, source + i), d, target + i);
  }
  std::memcpy(target + i, source + i, bytes - i);
  hwy::FlushStream();
}

}  // namespace tandem
