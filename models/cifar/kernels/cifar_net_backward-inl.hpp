// models/cifar/kernels/cifar_net_backward-inl.hpp — the CIFAR-10 net's backward, compiled once per
// SIMD target.
//
// Included by cifar_net.cpp inside its foreach_target passes (hence no #pragma once), behind what
// its forward defines.
#if defined(TANDEM_MODELS_KERNELS_CIFAR_NET_BACKWARD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_MODELS_KERNELS_CIFAR_NET_BACKWARD_INL
#undef TANDEM_MODELS_KERNELS_CIFAR_NET_BACKWARD_INL
#else
#define TANDEM_MODELS_KERNELS_CIFAR_NET_BACKWARD_INL
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

// ---- of one image

/// dx = W^T dy, 0 where x is not above 0.
HWY_INLINE void linear_backward(const float* weight, const float* dy, const float* x, int in,
                                int out, float* dx) {
  std::fill(dx, dx + in, 0.0F);
  for (int j = 0; j < out; ++j) {
    if (dy[j] != 0.0F) {
      const float* row = weight + static_cast<std::ptrdiff_t>(j) * in;
      for_lanes(in, [&](auto d, auto i) HWY_ATTR {
        hn::StoreU(hn::MulAdd(hn::Set(d, dy[j]), hn::LoadU(d, row + i), hn::LoadU(d, dx + i)), d,
                   dx + i);
      });
    }
  }
  for_lanes(in, [&](auto d, auto i) HWY_ATTR {
    const auto alive = hn::Gt(hn::LoadU(d, x + i), hn::Zero(d));
    hn::StoreU(hn::IfThenElseZero(alive, hn::LoadU(d, dx + i)), d, dx + i);
  });
}

/// The positions in one channel of a pooled map that have a gradient: their gradients, and the
/// beginnings of their patches.
struct Places {
  float gradient[kPool1 * kPool1];
  std::int32_t begin[kPool1 * kPool1];
  int count = 0;
  float sum = 0;

  HWY_INLINE void add(float value, std::int32_t place) {
    if (value != 0.0F) {
      gradient[count] = value;
      begin[count++] = place;
      sum += value;
    }
  }
};

/// to[8 i + lane] = sum over places of gradient * from[begin + 8 i + lane], i in [0, 5).
template <int kStep>
HWY_INLINE void patch_sums(const Places& places, const float* from, float* to) {
  const auto d = kEight;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int lane = 0; lane < 8; lane += lanes) {
    auto a0 = hn::Zero(d);
    auto a1 = a0;
    auto a2 = a0;
    auto a3 = a0;
    auto a4 = a0;
    for (int i = 0; i < places.count; ++i) {
      const auto gradient = hn::Set(d, places.gradient[i]);
      const float* patch = from + places.begin[i] + lane;
      a0 = hn::MulAdd(gradient, hn::LoadU(d, patch), a0);
      a1 = hn::MulAdd(gradient, hn::LoadU(d, patch + kStep), a1);
      a2 = hn::MulAdd(gradient, hn::LoadU(d, patch + 2 * kStep), a2);
      a3 = hn::MulAdd(gradient, hn::LoadU(d, patch + 3 * kStep), a3);
      a4 = hn::MulAdd(gradient, hn::LoadU(d, patch + 4 * kStep), a4);
    }
    hn::Store(a0, d, to + lane);
    hn::Store(a1, d, to + 8 + lane);
    hn::Store(a2, d, to + 16 + lane);
    hn::Store(a3, d, to + 24 + lane);
    hn::Store(a4, d, to + 32 + lane);
  }
}

/// Adds gradient * weights (five rows of five pixels) at every place.
HWY_INLINE void scatter_patches(const Places& places, const float* weights, float* to) {
  const auto d = kEight;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < places.count; ++i) {
    const auto gradient = hn::Set(d, places.gradient[i]);
    const float* weight = weights;
    float* line = to + places.begin[i];
    for (int ky = 0; ky < 5; ++ky, line += kRow1, weight += 40) {
      for (int at = 0; at < 40; at += lanes) {
        hn::StoreU(hn::MulAdd(gradient, hn::Load(d, weight + at), hn::LoadU(d, line + at)), d,
                   line + at);
      }
    }
  }
}

HWY_INLINE void conv2_backward(const Packed& packed, Work& work, Row& row) {
  std::memset(work.d_pool1, 0, sizeof(work.d_pool1));
  for (int out = 0; out < kConv2; ++out) {
    Places places;
    for (int at = 0; at < kPool2 * kPool2; ++at) {
      places.add(work.d_flat[out * kPool2 * kPool2 + at], work.chosen2[at][out]);
    }
    row.d_conv2_bias[out] = places.sum;
    for (int ky = 0; ky < 5; ++ky) {  // five pixels of eight channels each
      patch_sums<kPixel>(places, work.pool1 + ky * kRow1, row.d_conv2 + out * kPadded + ky * 40);
    }
    scatter_patches(places, packed.by_output + out * kPadded, work.d_pool1);
  }
}

HWY_INLINE void conv1_backward(const float* image, Work& work, Row& row) {
  for (int out = 0; out < kConv1; ++out) {
    Places places;
    for (int y = 0; y < kPool1; ++y) {
      for (int x = 0; x < kPool1; ++x) {
        const int at = y * kRow1 + x * kPixel + out;
        places.add(work.pool1[at] > 0.0F ? work.d_pool1[at] : 0.0F, work.chosen1[out][y][x]);
      }
    }
    row.d_conv1_bias[out] = places.sum;
    for (int in = 0; in < 3;
         ++in) {  // five rows of five pixels, three lanes of rubbish behind each
      patch_sums<kSide>(places, image + in * kSide * kSide, row.d_conv1 + (out * 3 + in) * 40);
    }
  }
}

/// Returns the loss of one image. `d_logits` becomes the gradient of the logits, times `share`.
inline double softmax_loss(const float* logits, std::int64_t label, float share, float* d_logits) {
  const float largest = *std::max_element(logits, logits + kClasses);
  double sum = 0;
  for (int c = 0; c < kClasses; ++c) {
    sum += std::exp(static_cast<double>(logits[c] - largest));
  }
  for (int c = 0; c < kClasses; ++c) {
    const double p = std::exp(static_cast<double>(logits[c] - largest)) / sum;
    d_logits[c] = static_cast<float>((p - (c == label ? 1.0 : 0.0)) * static_cast<double>(share));
  }
  return std::log(sum) - static_cast<double>(logits[label] - largest);
}

// ---- weight gradients

/// How the sums of one parameter are written.
struct Target {
  float scale;
  bool add;

  HWY_INLINE void put(float sum, float* to) const { *to = add ? *to + scale * sum : scale * sum; }
};

/// Writes rows [begin, end) of dW [out, in] = sum over images of dy x^T, and of db.
template <class X, class Y>
HWY_INLINE void outer_sums(const Row* rows, std::int64_t count, X x_of, Y dy_of, int in, int begin,
                           int end, Target target, float* weight, float* bias) {
  for (int j = begin; j < end; ++j) {
    float* to = weight + static_cast<std::ptrdiff_t>(j) * in;
    for_lanes(in, [&](auto d, auto i) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (std::int64_t n = 0; n < count; ++n) {
        sum = hn::MulAdd(hn::Set(d, dy_of(rows[n])[j]), hn::LoadU(d, x_of(rows[n]) + i), sum);
      }
      sum = hn::Mul(sum, hn::Set(d, target.scale));
      hn::StoreU(target.add ? hn::Add(sum, hn::LoadU(d, to + i)) : sum, d, to + i);
    });
    float sum = 0;
    for (std::int64_t n = 0; n < count; ++n) {
      sum += dy_of(rows[n])[j];
    }
    target.put(sum, bias + j);
  }
}

/// Writes the sums over images of one member of Row into `sums` [size].
template <class Of>
HWY_INLINE void sum_rows(const Row* rows, std::int64_t count, Of of, int size, float* sums) {
  for_lanes(size, [&](auto d, auto i) HWY_ATTR {
    auto sum = hn::LoadU(d, of(rows[0]) + i);
    for (std::int64_t n = 1; n < count; ++n) {
      sum = hn::Add(sum, hn::LoadU(d, of(rows[n]) + i));
    }
    hn::StoreU(sum, d, sums + i);
  });
}

HWY_INLINE void conv1_sums(const Row* rows, std::int64_t count, Target target,
                           const Parameters<float>& g) {
  alignas(64) float sums[kConv1 * 3 * 40];
  sum_rows(rows, count, [](const Row& r) { return r.d_conv1; }, kConv1 * 3 * 40, sums);
  for (int line = 0; line < kConv1 * 3 * 5; ++line) {
    for (int kx = 0; kx < 5; ++kx) {
      target.put(sums[line * 8 + kx], g.conv1_weight + line * 5 + kx);
    }
  }
  sum_rows(rows, count, [](const Row& r) { return r.d_conv1_bias; }, kConv1, sums);
  for (int out = 0; out < kConv1; ++out) {
    target.put(sums[out], g.conv1_bias + out);
  }
}

/// Output channels [begin, end) of conv2.
HWY_INLINE void conv2_sums(const Row* rows, std::int64_t count, int begin, int end, Target target,
                           const Parameters<float>& g) {
  alignas(64) float sums[kPadded];
  for (int out = begin; out < end; ++out) {
    sum_rows(rows, count, [&](const Row& r) { return r.d_conv2 + out * kPadded; }, kPadded, sums);
    for (int in = 0; in < kConv1; ++in) {
      for (int tap = 0; tap < 25; ++tap) {
        target.put(sums[tap * 8 + in], g.conv2_weight + (out * kConv1 + in) * 25 + tap);
      }
    }
    sum_rows(rows, count, [&](const Row& r) { return r.d_conv2_bias + out; }, 1, sums);
    target.put(sums[0], g.conv2_bias + out);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
