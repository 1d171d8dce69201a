// actors/kernels/reduce.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/reduce.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;

/// from -> to with the conversion their types ask for; the tail goes through full vectors on the
/// stack.
template <class From, class To>
HWY_INLINE void convert(const From* HWY_RESTRICT from, To* HWY_RESTRICT to, std::size_t count) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store_f32(d, load_f32(d, from + i), to + i);
  }
  if (i < count) {
    From in[hn::MaxLanes(F32())] = {};
    To out[hn::MaxLanes(F32())];
    for (std::size_t k = i; k < count; ++k) {
      in[k - i] = from[k];
    }
    store_f32(d, load_f32(d, in), out);
    for (std::size_t k = i; k < count; ++k) {
      to[k] = out[k - i];
    }
  }
}

template <class Gradient>
HWY_INLINE void add_to(float* HWY_RESTRICT accumulator, const Gradient* HWY_RESTRICT gradient,
                       std::size_t count) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, accumulator + i), load_f32(d, gradient + i)), d,
               accumulator + i);
  }
  if (i < count) {
    float sum[hn::MaxLanes(F32())] = {};
    Gradient in[hn::MaxLanes(F32())] = {};
    for (std::size_t k = i; k < count; ++k) {
      sum[k - i] = accumulator[k];
      in[k - i] = gradient[k];
    }
    hn::StoreU(hn::Add(hn::LoadU(d, sum), load_f32(d, in)), d, sum);
    for (std::size_t k = i; k < count; ++k) {
      accumulator[k] = sum[k - i];
    }
  }
}

inline constexpr std::size_t kNormLanes = 32;

// Each lane adds in ascending order; a square is exact in double, so a fused multiply-add and a
// multiply followed by an add give the same bits. (Vectors without a fixed size, SVE and RVV, could
// not stand in the arrays below.)
using F64 = hn::ScalableTag<double>;
inline constexpr std::size_t kNormVectors = kNormLanes / hn::MaxLanes(F64());

/// Adds the lanes as a tree: 32 -> 16 -> 8 -> 4 -> 2 -> 1.
HWY_INLINE double sum_lanes(double* lanes) {
  for (std::size_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) {
      lanes[k] += lanes[k + half];
    }
  }
  return lanes[0];
}

/// Sum of squares of one whole block in the fixed order of the header.
HWY_INLINE double sum_squares(const float* block) {
  const F64 d64;
  const hn::Rebind<float, F64> d32;
  constexpr std::size_t kWidth = hn::MaxLanes(F64());
  hn::Vec<F64> sums[kNormVectors];
  for (auto& sum : sums) {
    sum = hn::Zero(d64);
  }
  for (std::size_t i = 0; i < kNormTile; i += kNormLanes) {
    for (std::size_t k = 0; k < kNormVectors; ++k) {
      const auto x = hn::PromoteTo(d64, hn::LoadU(d32, block + i + k * kWidth));
      sums[k] = hn::MulAdd(x, x, sums[k]);
    }
  }
  double lanes[kNormLanes];
  for (std::size_t k = 0; k < kNormVectors; ++k) {
    hn::StoreU(sums[k], d64, lanes + k * kWidth);
  }
  return sum_lanes(lanes);
}

/// The same for bf16. One vector of 32-bit words holds pairs of neighbours: the even elements of it
/// by a shift, the odd ones by a mask, which is cheaper than widening in order. So the vectors'
/// lanes lie in another order than those above; they are put into place before the tree.
HWY_INLINE double sum_squares(const Bf16Bits* block) {
  const F64 d64;
  const F32 d32;
  const hn::RebindToUnsigned<F32> du32;
  const hn::Repartition<std::uint16_t, F32> d16;
  const hn::Half<F32> half32;
  constexpr std::size_t kWidth = hn::MaxLanes(F64());
  const auto high = hn::Set(du32, 0xffff0000U);
  hn::Vec<F64> sums[kNormVectors];
  for (auto& sum : sums) {
    sum = hn::Zero(d64);
  }
  for (std::size_t i = 0; i < kNormTile; i += kNormLanes) {
    // A group of four vectors takes 4 * kWidth neighbours.
    for (std::size_t k = 0; k < kNormVectors; k += 4) {
      const auto pairs = hn::BitCast(du32, hn::LoadU(d16, &block[i + k * kWidth].bits));
      const auto even = hn::BitCast(d32, hn::ShiftLeft<16>(pairs));
      const auto odd = hn::BitCast(d32, hn::And(pairs, high));
      const auto x0 = hn::PromoteTo(d64, hn::LowerHalf(half32, even));
      const auto x1 = hn::PromoteTo(d64, hn::UpperHalf(half32, even));
      const auto x2 = hn::PromoteTo(d64, hn::LowerHalf(half32, odd));
      const auto x3 = hn::PromoteTo(d64, hn::UpperHalf(half32, odd));
      sums[k] = hn::MulAdd(x0, x0, sums[k]);
      sums[k + 1] = hn::MulAdd(x1, x1, sums[k + 1]);
      sums[k + 2] = hn::MulAdd(x2, x2, sums[k + 2]);
      sums[k + 3] = hn::MulAdd(x3, x3, sums[k + 3]);
    }
  }
  double lanes[kNormLanes];
  double stored[kWidth];
  for (std::size_t k = 0; k < kNormVectors; ++k) {
    hn::StoreU(sums[k], d64, stored);
    const std::size_t odd = k % 4 / 2;
    const std::size_t first = (k - k % 4) * kWidth + k % 2 * kWidth * 2 + odd;
    for (std::size_t lane = 0; lane < kWidth; ++lane) {
      lanes[first + lane * 2] = stored[lane];
    }
  }
  return sum_lanes(lanes);
}

HWY_INLINE double sum_squares(const F16Bits* block) {
  float wide[kNormTile];
  convert(block, wide, kNormTile);
  return sum_squares(wide);
}

/// `count` elements of one block (fewer only at the array's end) that begin at `position`, a
/// block's first element.
template <class Value>
HWY_INLINE void add_block(const Value* values, std::size_t position, std::size_t count,
                          GradientNorm& norm) {
  double sum;
  if (count == kNormTile) {
    sum = sum_squares(values);
  } else {
    Value padded[kNormTile] = {};
    std::memcpy(padded, values, count * sizeof(Value));
    sum = sum_squares(padded);
  }
  norm.sum_of_squares.add(sum);
  if (!std::isfinite(sum) && norm.first_bad_element < 0) {
    float wide[kNormTile];
    convert(values, wide, count);
    std::size_t i = 0;
    while (std::isfinite(wide[i])) {
      ++i;
    }
    norm.first_bad_element = static_cast<std::int64_t>(position + i);
  }
}

/// Calls `work` with `values` as what they are.
template <class Work>
HWY_INLINE void with_type(DType type, const void* values, Work work) {
  switch (type) {
    case DType::kF32:
      return work(static_cast<const float*>(values));
    case DType::kBF16:
      return work(static_cast<const Bf16Bits*>(values));
    case DType::kF16:
      return work(static_cast<const F16Bits*>(values));
  }
}

template <class Gradient>
void accumulate_typed(float* accumulator, const Gradient* gradient, std::size_t begin,
                      std::size_t end, AccumulateMode mode, GradientNorm* norm) {
  for (std::size_t at = begin; at < end; at += kNormTile) {
    const std::size_t count = std::min(kNormTile, end - at);
    if (mode == AccumulateMode::kOverwrite) {
      convert(gradient + at, accumulator + at, count);
    } else {
      add_to(accumulator + at, gradient + at, count);
    }
    if (norm != nullptr) {
      add_block(accumulator + at, at, count, *norm);  // the block is still in the first-level cache
    }
  }
}

void accumulate_elements(float* accumulator, const void* gradient, DType type, std::size_t begin,
                         std::size_t end, AccumulateMode mode, GradientNorm* norm) {
  with_type(type, gradient, [&](const auto* typed) {
    accumulate_typed(accumulator, typed, begin, end, mode, norm);
  });
}

template <class Value>
void add_norm_typed(const Value* values, std::size_t begin, std::size_t end, GradientNorm& norm) {
  for (std::size_t at = begin; at < end; at += kNormTile) {
    add_block(values + at, at, std::min(kNormTile, end - at), norm);
  }
}

void add_norm_blocks(const void* values, DType type, std::size_t begin, std::size_t end,
                     GradientNorm& norm) {
  with_type(type, values, [&](const auto* typed) { add_norm_typed(typed, begin, end, norm); });
}

void narrow(const float* from, DType to_type, void* to, std::size_t count) {
  if (to_type == DType::kBF16) {
    convert(from, static_cast<Bf16Bits*>(to), count);
  } else {
    convert(from, static_cast<F16Bits*>(to), count);
  }
}

void widen(const void* from, DType from_type, float* to, std::size_t count) {
  with_type(from_type, from, [&](const auto* typed) { convert(typed, to, count); });
}

/// As convert(), past the caches. The source is prefetched two pages ahead: where a page ends, the
/// processor's own prefetching does, and the stores leave it little room to catch up (measured: 4
/// to 5 %).
template <class From>
HWY_INLINE void convert_past_caches(const From* from, float* to, std::size_t count) {
  constexpr std::size_t kAheadBytes = 8192;
  constexpr std::size_t kStep = 64;  // elements; whole vectors of every target
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) / sizeof(float) % lanes;
  std::size_t i = misaligned == 0 ? 0 : std::min(count, lanes - misaligned);
  convert(from, to, i);
  for (; i + kStep <= count; i += kStep) {
    const auto* ahead = reinterpret_cast<const std::byte*>(from + i) + kAheadBytes;
    for (std::size_t byte = 0; byte < kStep * sizeof(From); byte += 64) {
      hwy::Prefetch(ahead + byte);
    }
    for (std::size_t k = 0; k < kStep; k += lanes) {
      hn::Stream(load_f32(d, from + i + k), d, to + i + k);
    }
  }
  convert(from + i, to + i, count - i);
  hwy::FlushStream();
}

void widen_streaming(const void* from, DType from_type, float* to, std::size_t count) {
  with_type(from_type, from, [&](const auto* typed) { convert_past_caches(typed, to, count); });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(accumulate_elements);
HWY_EXPORT(add_norm_blocks);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);
HWY_EXPORT(widen_streaming);

void accumulate(float* accumulator, const void* gradient, DType gradient_type, std::size_t begin,
                std::size_t end, AccumulateMode mode) {
  HWY_DYNAMIC_DISPATCH(accumulate_elements)(accumulator, gradient, gradient_type, begin, end, mode,
                                            nullptr);
}

void accumulate_with_norm(float* accumulator, const void* gradient, DType gradient_type,
                          std::size_t begin, std::size_t end, AccumulateMode mode,
                          GradientNorm& norm) {
  TANDEM_CHECK_EQ(begin % kNormTile, 0U, "norm tiles lie at fixed flat positions");
  HWY_DYNAMIC_DISPATCH(accumulate_elements)(accumulator, gradient, gradient_type, begin, end, mode,
                                            &norm);
}

void add_norm(const void* values, DType type, std::size_t begin, std::size_t end,
              GradientNorm& norm) {
  TANDEM_CHECK_EQ(begin % kNormTile, 0U, "norm tiles lie at fixed flat positions");
  HWY_DYNAMIC_DISPATCH(add_norm_blocks)(values, type, begin, end, norm);
}

void cast(const void* from, DType from_type, void* to, DType to_type, std::size_t begin,
          std::size_t end) {
  if (begin == end) {
    return;
  }
  const std::size_t from_size = bytes_of(from_type);
  const std::size_t to_size = bytes_of(to_type);
  const auto* source = static_cast<const std::byte*>(from) + begin * from_size;
  auto* target = static_cast<std::byte*>(to) + begin * to_size;
  const std::size_t count = end - begin;
  if (from_type == to_type) {
    std::memcpy(target, source, count * from_size);
  } else if (from_type == DType::kF32) {
    HWY_DYNAMIC_DISPATCH(narrow)(reinterpret_cast<const float*>(source), to_type, target, count);
  } else {
    TANDEM_CHECK(to_type == DType::kF32, "one 16-bit type does not become the other");
    HWY_DYNAMIC_DISPATCH(widen)(source, from_type, reinterpret_cast<float*>(target), count);
  }
}

void widen_past_caches(const void* from, DType from_type, float* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_streaming)(from, from_type, to, count);
}

}  // namespace tandem
#endif
