// models/kernels/norm.cpp — compiled once per SIMD target (foreach_target).
#include "models/kernels/norm.hpp"

#include <cmath>
#include <vector>

#include "models/kernels/parallel.hpp"
#include "models/kernels/scratch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

#ifndef TANDEM_NORM_SHARED
#define TANDEM_NORM_SHARED
namespace tandem {
namespace {
constexpr std::int64_t kRowsPerBlock = 64;  // part of the result: sums over rows are cut here
thread_local Scratch partial_scratch;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

struct Statistics {
  float mean = 0.0F;
  float scale = 0.0F;  // 1 / sqrt(variance + eps)
};

template <NormKind kKind, class T>
HWY_INLINE Statistics statistics(const T* x, std::int64_t width, double eps) {
  Statistics s;
  const auto count = static_cast<float>(width);
  if constexpr (kKind == NormKind::kLayer) {
    s.mean = sum_lanes(width, [&](auto d, auto i) HWY_ATTR { return load_f32(d, x + i); }) / count;
  }
  const float squares = sum_lanes(width, [&](auto d, auto i) HWY_ATTR {
    auto value = load_f32(d, x + i);
    if constexpr (kKind == NormKind::kLayer) {
      value = hn::Sub(value, hn::Set(d, s.mean));
    }
    return hn::Mul(value, value);
  });
  s.scale = 1.0F / std::sqrt(squares / count + static_cast<float>(eps));
  return s;
}

template <NormKind kKind, class D, class T>
HWY_INLINE hn::Vec<D> weight_at(D d, const T* weight) {
  const auto value = load_f32(d, weight);
  if constexpr (kKind == NormKind::kRmsAroundOne) {
    return hn::Add(value, hn::Set(d, 1.0F));
  } else {
    return value;
  }
}

template <NormKind kKind, class T>
void forward_row(const NormRows& n, const T* x, const T* residual, T* y) {
  const Statistics s = statistics<kKind>(x, n.width, n.eps);
  const T* weight = static_cast<const T*>(n.weight);
  const T* bias = static_cast<const T*>(n.bias);
  for_lanes(n.width, [&](auto d, auto i) HWY_ATTR {
    auto value = load_f32(d, x + i);
    if constexpr (kKind == NormKind::kLayer) {
      value = hn::Sub(value, hn::Set(d, s.mean));
    }
    value = hn::Mul(hn::Mul(value, hn::Set(d, s.scale)), weight_at<kKind>(d, weight + i));
    if constexpr (kKind == NormKind::kLayer) {
      value = hn::Add(value, load_f32(d, bias + i));
    }
    if (residual != nullptr) {
      value = hn::Add(value, load_f32(d, residual + i));
    }
    store_f32(d, value, y + i);
  });
}

template <NormKind kKind, class T>
void backward_row(const NormRows& n, const T* x, const T* dy, const T* residual, T* dx,
                  float* dweight, float* dbias) {
  const Statistics s = statistics<kKind>(x, n.width, n.eps);
  const T* weight = static_cast<const T*>(n.weight);
  const auto count = static_cast<float>(n.width);
  const auto normal = [&](auto d, auto i) HWY_ATTR {
    auto value = load_f32(d, x + i);
    if constexpr (kKind == NormKind::kLayer) {
      value = hn::Sub(value, hn::Set(d, s.mean));
    }
    return hn::Mul(value, hn::Set(d, s.scale));
  };
  const auto weighted = [&](auto d, auto i) HWY_ATTR {
    return hn::Mul(load_f32(d, dy + i), weight_at<kKind>(d, weight + i));
  };
  const float along =
      sum_lanes(n.width,
                [&](auto d, auto i) HWY_ATTR { return hn::Mul(weighted(d, i), normal(d, i)); }) /
      count;
  float mean = 0.0F;
  if constexpr (kKind == NormKind::kLayer) {
    mean = sum_lanes(n.width, weighted) / count;
  }
  for_lanes(n.width, [&](auto d, auto i) HWY_ATTR {
    const auto unit = normal(d, i);
    auto value = hn::NegMulAdd(unit, hn::Set(d, along), weighted(d, i));
    const auto dyi = load_f32(d, dy + i);
    if constexpr (kKind == NormKind::kLayer) {
      value = hn::Sub(value, hn::Set(d, mean));
      hn::StoreU(hn::Add(hn::LoadU(d, dbias + i), dyi), d, dbias + i);
    }
    hn::StoreU(hn::MulAdd(dyi, unit, hn::LoadU(d, dweight + i)), d, dweight + i);
    value = hn::Mul(value, hn::Set(d, s.scale));
    if (residual != nullptr) {
      value = hn::Add(value, load_f32(d, residual + i));
    }
    store_f32(d, value, dx + i);
  });
}

template <NormKind kKind, class T>
void forward_typed(const NormRows& n, void* y, const void* residual) {
  parallel_blocks(n.rows, kRowsPerBlock, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t from = n.index == nullptr ? r : n.index[r];
      forward_row<kKind>(
          n, static_cast<const T*>(n.x) + from * n.width,
          residual == nullptr ? nullptr : static_cast<const T*>(residual) + r * n.width,
          static_cast<T*>(y) + r * n.width);
    }
  });
}

/// sums[j] = sum over blocks of partial[block][j], in the order of the blocks.
void add_partials(const float* partial, std::int64_t stride, std::int64_t blocks,
                  std::int64_t width, float* sums) {
  for_lanes(width, [&](auto d, auto j) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::int64_t b = 0; b < blocks; ++b) {
      sum = hn::Add(sum, hn::LoadU(d, partial + b * stride + j));
    }
    hn::StoreU(sum, d, sums + j);
  });
}

template <NormKind kKind, class T>
void backward_typed(const NormRows& n, const void* dy, const void* residual, void* dx,
                    float* dweight, float* dbias) {
  const std::int64_t blocks = (n.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  auto* partial = partial_scratch.get<float>(static_cast<std::size_t>((blocks + 1) * 2 * n.width));
  parallel_blocks(n.rows, kRowsPerBlock, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    float* dw = partial + begin / kRowsPerBlock * 2 * n.width;
    std::fill_n(dw, 2 * n.width, 0.0F);
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t at = (n.index == nullptr ? r : n.index[r]) * n.width;
      const T* from = residual == nullptr ? nullptr : static_cast<const T*>(residual) + at;
      backward_row<kKind>(n, static_cast<const T*>(n.x) + at,
                          static_cast<const T*>(dy) + r * n.width, from, static_cast<T*>(dx) + at,
                          dw, dw + n.width);
    }
  });
  add_partials(partial, 2 * n.width, blocks, n.width, dweight);
  if constexpr (kKind == NormKind::kLayer) {
    add_partials(partial + n.width, 2 * n.width, blocks, n.width, dbias);
  }
}

template <class T>
void column_sums_typed(const T* x, std::int64_t rows, std::int64_t width, float* sums) {
  const std::int64_t blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  auto* partial = partial_scratch.get<float>(static_cast<std::size_t>((blocks + 1) * width));
  parallel_blocks(rows, kRowsPerBlock, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    float* sum = partial + begin / kRowsPerBlock * width;
    std::fill_n(sum, width, 0.0F);
    for (std::int64_t r = begin; r < end; ++r) {
      for_lanes(width, [&](auto d, auto j) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, sum + j), load_f32(d, x + r * width + j)), d, sum + j);
      });
    }
  });
  add_partials(partial, width, blocks, width, sums);
}

/// call(kind, element) with the two choices as compile-time constants.
template <class Call>
void choose(const NormRows& n, Call call) {
  with_element(n.type, [&](auto element) HWY_ATTR {
    switch (n.kind) {
      case NormKind::kRms:
        return call(std::integral_constant<NormKind, NormKind::kRms>(), element);
      case NormKind::kRmsAroundOne:
        return call(std::integral_constant<NormKind, NormKind::kRmsAroundOne>(), element);
      case NormKind::kLayer:
        return call(std::integral_constant<NormKind, NormKind::kLayer>(), element);
    }
  });
}

void NormForward(const NormRows& n, void* y, const void* residual) {
  choose(n, [&](auto kind, auto element) HWY_ATTR {
    forward_typed<decltype(kind)::value, decltype(element)>(n, y, residual);
  });
}

void NormBackward(const NormRows& n, const void* dy, const void* residual, void* dx, float* dweight,
                  float* dbias) {
  choose(n, [&](auto kind, auto element) HWY_ATTR {
    backward_typed<decltype(kind)::value, decltype(element)>(n, dy, residual, dx, dweight, dbias);
  });
}

void ColumnSums(const void* x, DType type, std::int64_t rows, std::int64_t width, float* sums) {
  with_element(type, [&](auto element) HWY_ATTR {
    column_sums_typed(static_cast<const decltype(element)*>(x), rows, width, sums);
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(NormForward);
HWY_EXPORT(NormBackward);
HWY_EXPORT(ColumnSums);

void norm_forward(const NormRows& rows, void* y, const void* residual) {
  HWY_DYNAMIC_DISPATCH(NormForward)(rows, y, residual);
}

void norm_backward(const NormRows& rows, const void* dy, const void* residual, void* dx,
                   float* dweight, float* dbias) {
  HWY_DYNAMIC_DISPATCH(NormBackward)(rows, dy, residual, dx, dweight, dbias);
}

void column_sums(const void* x, DType type, std::int64_t rows, std::int64_t width, float* sums) {
  HWY_DYNAMIC_DISPATCH(ColumnSums)(x, type, rows, width, sums);
}
}  // namespace tandem
#endif
