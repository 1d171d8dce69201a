#include "bench/adam/ceiling.hpp"

#include <atomic>
#include <cstdint>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/adam/ceiling.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef TANDEM_BENCH_ADAM_CEILING
#define TANDEM_BENCH_ADAM_CEILING
namespace tandem::bench {
/// Zero, which the compiler cannot know: so nothing that is loaded and stored again is taken for no
/// change.
inline std::atomic<std::uint32_t> unknown_zero{0};
}  // namespace tandem::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::ScalableTag<float>;

/// One vector's worth of elements from an array to an array; `zero` keeps them as they are.
template <bool kStream, class T>
HWY_INLINE void pass(const T* from, T* to, T zero) {
  const hn::Rebind<T, Lanes> d;
  const auto value = hn::Xor(hn::LoadU(d, from), hn::Set(d, zero));
  if constexpr (kStream && hn::MaxLanes(d) * sizeof(T) >= 16) {
    hn::Stream(value, d, to);
  } else {
    hn::StoreU(value, d, to);
  }
}

enum class Weight { kNone, kWritten, kHalf };

template <class Master, class Moment, class Gradient, Weight kWeight, bool kApart, bool kStream>
void move(const UpdateBuffers& b, std::size_t begin, std::size_t end) {
  const hn::Rebind<Gradient, Lanes> dg;
  const hn::Rebind<std::uint16_t, Lanes> d16;
  const std::uint32_t zero = unknown_zero.load(std::memory_order_relaxed);
  const auto* gradient = static_cast<const Gradient*>(b.gradient);
  auto* master = static_cast<Master*>(b.master);
  Moment* state[2] = {static_cast<Moment*>(b.state[0]), static_cast<Moment*>(b.state[1])};
  auto* weight = static_cast<std::uint16_t*>(b.weight);
  const auto* master_from = kApart ? static_cast<const Master*>(b.from.master) : master;
  const auto* first = kApart ? static_cast<const Moment*>(b.from.state[0]) : state[0];
  const auto* second = kApart ? static_cast<const Moment*>(b.from.state[1]) : state[1];
  const auto* weight_from = kApart ? static_cast<const std::uint16_t*>(b.from.weight) : weight;
  auto sum = hn::Zero(dg);
  for (std::size_t i = begin; i + hn::Lanes(dg) <= end; i += hn::Lanes(dg)) {
    const auto g = hn::LoadU(dg, gradient + i);
    sum = hn::Xor(sum, g);
    pass<kApart && kStream>(master_from + i, master + i, static_cast<Master>(zero));
    pass<kApart && kStream>(first + i, state[0] + i, static_cast<Moment>(zero));
    pass<kApart && kStream>(second + i, state[1] + i, static_cast<Moment>(zero));
    if constexpr (kWeight == Weight::kHalf) {
      pass<kApart && kStream>(weight_from + i, weight + i, static_cast<std::uint16_t>(zero));
    } else if constexpr (kWeight == Weight::kWritten) {
      const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(gradient + i));
      if constexpr (kStream && hn::MaxLanes(d16) * 2 >= 16) {
        hn::Stream(bits, d16, weight + i);
      } else {
        hn::StoreU(bits, d16, weight + i);
      }
    }
  }
  if constexpr (kStream) {
    hwy::FlushStream();
  }
  unknown_zero.fetch_and(static_cast<std::uint32_t>(hn::GetLane(sum)) & 0,
                         std::memory_order_relaxed);
}

template <bool kApart, bool kStream>
void move_as(const UpdateBuffers& b, std::size_t begin, std::size_t end) {
  using U8 = std::uint8_t;
  using U16 = std::uint16_t;
  using U32 = std::uint32_t;
  switch (b.layout) {
    case StateLayout::kFp32:
      return b.weight == nullptr
                 ? move<U32, U32, U32, Weight::kNone, kApart, kStream>(b, begin, end)
                 : move<U32, U32, U16, Weight::kWritten, kApart, kStream>(b, begin, end);
    case StateLayout::kSplit:
      return move<U16, U32, U16, Weight::kHalf, kApart, kStream>(b, begin, end);
    case StateLayout::kBf16:
      return move<U16, U16, U16, Weight::kHalf, kApart, kStream>(b, begin, end);
    case StateLayout::kInt8:
      return move<U16, U8, U16, Weight::kHalf, kApart, false>(b, begin, end);
  }
}

void move_elements(const UpdateBuffers& b, std::size_t begin, std::size_t end) {
  const auto* weight = static_cast<std::uint16_t*>(b.weight) + begin;
  const auto* master = static_cast<std::byte*>(b.master) + begin * 2;
  const void* written = b.weight == nullptr ? static_cast<const void*>(master) : weight;
  const bool aligned = reinterpret_cast<std::uintptr_t>(written) % 64 == 0;
  const bool apart = b.from.master != nullptr;
  if (apart) {
    aligned ? move_as<true, true>(b, begin, end) : move_as<true, false>(b, begin, end);
  } else {
    aligned ? move_as<false, true>(b, begin, end) : move_as<false, false>(b, begin, end);
  }
}

}  // namespace tandem::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::bench {

HWY_EXPORT(move_elements);

void move_only(const UpdateBuffers& buffers, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(move_elements)(buffers, begin, end);
}

}  // namespace tandem::bench
#endif
