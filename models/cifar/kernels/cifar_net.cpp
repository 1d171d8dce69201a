// models/cifar/kernels/cifar_net.cpp — compiled once per SIMD target by
// Highway's foreach_target.
#include "models/cifar/kernels/cifar_net.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "actors/kernels/dtype.hpp"
#include "models/kernels/scratch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/cifar/kernels/cifar_net.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

#ifndef TANDEM_CIFAR_NET_SHARED
#define TANDEM_CIFAR_NET_SHARED
namespace tandem::cifar_net {
namespace {

constexpr int kSide = 32;
constexpr int kPool1 = 14;  // side after the first pool
constexpr int kPool2 = 5;   // and after the second
constexpr int kPixel = 8;   // channels of the first pool's output, padded
constexpr int kRow1 = kPool1 * kPixel;
constexpr int kTaps1 = 75;          // weights of one output of conv1
constexpr int kPadded = 5 * 5 * 8;  // of conv2, padded
constexpr std::int64_t kRowsPerPart = 8;

/// Working memory of one image. Vector loads may run over a row's end, hence the room behind
/// each.
struct Work {
  alignas(64) float image[kImage + 64];
  alignas(64) float conv[2][8][kSide];           // two output rows of conv1, of each channel
  alignas(64) float pool1[kPool1 * kRow1 + 64];  // [y, x, channel]
  alignas(64) float d_pool1[kPool1 * kRow1 + 64];
  alignas(
      64) std::int32_t chosen1[kConv1][kPool1][16];  // where in the image's rows the largest lay
  alignas(64) float conv2[2][10][kConv2];            // two output rows of conv2
  alignas(64) std::int32_t chosen2[kPool2 * kPool2][kConv2];  // where in pool1 its patch begins
  alignas(64) float d_flat[kFlat + 16];
  alignas(64) Row unused;  // for images without a backward
};
thread_local Scratch work_scratch;

}  // namespace
}  // namespace tandem::cifar_net
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace cifar_net;
using Weights = Parameters<const float>;

constexpr hn::CappedTag<float, 16> kWide;
constexpr hn::CappedTag<std::int32_t, 16> kWideInt;
constexpr hn::CappedTag<float, 8> kEight;

// ---- forward

/// Rows y and y + 1 of conv1, all channels: the lanes are neighbours in x.
HWY_INLINE void conv1_rows(const Weights& w, const float* image, int y, Work& work) {
  const auto d = kWide;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int x = 0; x < 28; x += lanes) {
    auto a0 = hn::Set(d, w.conv1_bias[0]);
    auto a1 = hn::Set(d, w.conv1_bias[1]);
    auto a2 = hn::Set(d, w.conv1_bias[2]);
    auto a3 = hn::Set(d, w.conv1_bias[3]);
    auto a4 = hn::Set(d, w.conv1_bias[4]);
    auto a5 = hn::Set(d, w.conv1_bias[5]);
    auto b0 = a0;
    auto b1 = a1;
    auto b2 = a2;
    auto b3 = a3;
    auto b4 = a4;
    auto b5 = a5;
    const float* tap = w.conv1_weight;
    for (int in = 0; in < 3; ++in) {
      for (int ky = 0; ky < 5; ++ky) {
        const float* from = image + (in * kSide + y + ky) * kSide + x;
        for (int kx = 0; kx < 5; ++kx, ++tap) {
          const auto upper = hn::LoadU(d, from + kx);
          const auto lower = hn::LoadU(d, from + kSide + kx);
          const auto step = [&](int out, auto& a, auto& b) HWY_ATTR {
            const auto weight = hn::Set(d, tap[out * kTaps1]);
            a = hn::MulAdd(weight, upper, a);
            b = hn::MulAdd(weight, lower, b);
          };
          step(0, a0, b0);
          step(1, a1, b1);
          step(2, a2, b2);
          step(3, a3, b3);
          step(4, a4, b4);
          step(5, a5, b5);
        }
      }
    }
    const auto put = [&](int out, auto a, auto b) HWY_ATTR {
      hn::Store(a, d, work.conv[0][out] + x);
      hn::Store(b, d, work.conv[1][out] + x);
    };
    put(0, a0, b0);
    put(1, a1, b1);
    put(2, a2, b2);
    put(3, a3, b3);
    put(4, a4, b4);
    put(5, a5, b5);
  }
}

/// The largest of the four, above 0, and where it lay: the first of equals, in reading order.
HWY_INLINE void pool1_row(int y, Work& work) {
  const auto d = kWide;
  const auto di = kWideInt;
  const int lanes = static_cast<int>(hn::Lanes(d));
  alignas(64) float largest[16];
  for (int out = 0; out < kConv1; ++out) {
    for (int x = 0; x < 16; x += lanes) {
      const auto pair = [&](int row) HWY_ATTR { return work.conv[row][out] + 2 * x; };
      const auto even = [&](int row) HWY_ATTR {
        return hn::ConcatEven(d, hn::Load(d, pair(row) + lanes), hn::Load(d, pair(row)));
      };
      const auto odd = [&](int row) HWY_ATTR {
        return hn::ConcatOdd(d, hn::Load(d, pair(row) + lanes), hn::Load(d, pair(row)));
      };
      const auto v0 = even(0);
      const auto v1 = odd(0);
      const auto v2 = even(1);
      const auto most = hn::Max(hn::Max(v0, v1), hn::Max(v2, odd(1)));
      auto place = hn::Set(di, kSide + 1);
      place = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v2, most)), hn::Set(di, kSide), place);
      place = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v1, most)), hn::Set(di, 1), place);
      place = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v0, most)), hn::Zero(di), place);
      const auto base = hn::Add(hn::Iota(di, x), hn::Iota(di, x));
      hn::Store(hn::Add(hn::Add(place, base), hn::Set(di, 2 * y * kSide)), di,
                work.chosen1[out][y] + x);
      hn::Store(hn::Max(most, hn::Zero(d)), d, largest + x);
    }
    for (int x = 0; x < kPool1; ++x) {
      work.pool1[y * kRow1 + x * kPixel + out] = largest[x];
    }
  }
}

/// Row y of conv2 for `lanes` output channels from `out` on, ten places in x at once.
HWY_INLINE void conv2_row(const Weights& w, const Packed& packed, int y, int row, Work& work) {
  const auto d = kWide;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int out = 0; out < kConv2; out += lanes) {
    auto a0 = hn::LoadU(d, w.conv2_bias + out);
    auto a1 = a0;
    auto a2 = a0;
    auto a3 = a0;
    auto a4 = a0;
    auto a5 = a0;
    auto a6 = a0;
    auto a7 = a0;
    auto a8 = a0;
    auto a9 = a0;
    const float* weight = packed.by_input + out;
    for (int ky = 0; ky < 5; ++ky) {
      const float* line = work.pool1 + (y + ky) * kRow1;
      for (int kx = 0; kx < 5; ++kx) {
        const float* from = line + kx * kPixel;
        for (int in = 0; in < kConv1; ++in, weight += kConv2, ++from) {
          const auto tap = hn::Load(d, weight);
          const auto step = [&](int x, auto& a)
                                HWY_ATTR { a = hn::MulAdd(tap, hn::Set(d, from[x * kPixel]), a); };
          step(0, a0);
          step(1, a1);
          step(2, a2);
          step(3, a3);
          step(4, a4);
          step(5, a5);
          step(6, a6);
          step(7, a7);
          step(8, a8);
          step(9, a9);
        }
      }
    }
    const auto put = [&](int x, auto a) HWY_ATTR { hn::Store(a, d, work.conv2[row][x] + out); };
    put(0, a0);
    put(1, a1);
    put(2, a2);
    put(3, a3);
    put(4, a4);
    put(5, a5);
    put(6, a6);
    put(7, a7);
    put(8, a8);
    put(9, a9);
  }
}

HWY_INLINE void pool2_row(int y, Work& work, float* flat) {
  const auto d = kWide;
  const auto di = kWideInt;
  const int lanes = static_cast<int>(hn::Lanes(d));
  alignas(64) float largest[kConv2];
  for (int x = 0; x < kPool2; ++x) {
    for (int out = 0; out < kConv2; out += lanes) {
      const auto v0 = hn::Load(d, work.conv2[0][2 * x] + out);
      const auto v1 = hn::Load(d, work.conv2[0][2 * x + 1] + out);
      const auto v2 = hn::Load(d, work.conv2[1][2 * x] + out);
      const auto v3 = hn::Load(d, work.conv2[1][2 * x + 1] + out);
      const auto most = hn::Max(hn::Max(v0, v1), hn::Max(v2, v3));
      auto place = hn::Set(di, kRow1 + kPixel);
      place = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v2, most)), hn::Set(di, kRow1), place);
      place = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v1, most)), hn::Set(di, kPixel), place);
      place = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v0, most)), hn::Zero(di), place);
      const int corner = 2 * y * kRow1 + 2 * x * kPixel;
      hn::Store(hn::Add(place, hn::Set(di, corner)), di, work.chosen2[y * kPool2 + x] + out);
      hn::Store(hn::Max(most, hn::Zero(d)), d, largest + out);
    }
    for (int out = 0; out < kConv2; ++out) {
      flat[out * kPool2 * kPool2 + y * kPool2 + x] = largest[out];
    }
  }
}

/// y = W x + b, with or without ReLU.
HWY_INLINE void linear(const float* weight, const float* bias, const float* x, int in, int out,
                       bool relu, float* y) {
  for (int j = 0; j < out; ++j) {
    const float* row = weight + static_cast<std::ptrdiff_t>(j) * in;
    const float sum = bias[j] + sum_lanes(in, [&](auto d, auto i) HWY_ATTR {
                        return hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, x + i));
                      });
    y[j] = relu ? std::max(sum, 0.0F) : sum;
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#include "models/cifar/kernels/cifar_net_backward-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// Up to fc2, whose activations are kept.hidden2.
HWY_INLINE void trunk_forward(const Weights& w, const Packed& packed, const float* image,
                              Work& work, Row& kept) {
  std::memcpy(work.image, image, sizeof(float) * kImage);
  for (int y = 0; y < kPool1; ++y) {
    conv1_rows(w, work.image, 2 * y, work);
    pool1_row(y, work);
  }
  for (int y = 0; y < kPool2; ++y) {
    conv2_row(w, packed, 2 * y, 0, work);
    conv2_row(w, packed, 2 * y + 1, 1, work);
    pool2_row(y, work, kept.flat);
  }
  linear(w.fc1_weight, w.fc1_bias, kept.flat, kFlat, kHidden1, true, kept.hidden1);
  linear(w.fc2_weight, w.fc2_bias, kept.hidden1, kHidden1, kHidden2, true, kept.hidden2);
}

/// From kept.d_hidden2 on, which is 0 where fc2's ReLU was.
HWY_INLINE void trunk_backward(const Weights& w, const Packed& packed, Work& work, Row& kept) {
  linear_backward(w.fc2_weight, kept.d_hidden2, kept.hidden1, kHidden1, kHidden2, kept.d_hidden1);
  linear_backward(w.fc1_weight, kept.d_hidden1, kept.flat, kFlat, kHidden1, work.d_flat);
  conv2_backward(packed, work, kept);
  conv1_backward(work.image, work, kept);
}

double RunImage(const Weights& w, const Packed& packed, const float* image, float* logits, Row* row,
                std::int64_t label, float share) {
  Work& work = *work_scratch.get<Work>(1);
  Row& kept = row != nullptr ? *row : work.unused;
  trunk_forward(w, packed, image, work, kept);
  linear(w.fc3_weight, w.fc3_bias, kept.hidden2, kHidden2, kClasses, false, logits);
  if (row == nullptr) {
    return 0;
  }
  const double loss = softmax_loss(logits, label, share, kept.d_logits);
  linear_backward(w.fc3_weight, kept.d_logits, kept.hidden2, kHidden2, kClasses, kept.d_hidden2);
  trunk_backward(w, packed, work, kept);
  return loss;
}

void RunTrunk(const Weights& w, const Packed& packed, const float* image, float* hidden2) {
  Work& work = *work_scratch.get<Work>(1);
  trunk_forward(w, packed, image, work, work.unused);
  std::memcpy(hidden2, work.unused.hidden2, sizeof(float) * kHidden2);
}

void RunTrunkBackward(const Weights& w, const Packed& packed, const float* image,
                      const float* d_hidden2, Row& row) {
  Work& work = *work_scratch.get<Work>(1);
  trunk_forward(w, packed, image, work, row);
  for (int i = 0; i < kHidden2; ++i) {
    row.d_hidden2[i] = row.hidden2[i] > 0.0F ? d_hidden2[i] : 0.0F;
  }
  trunk_backward(w, packed, work, row);
}

void WeightGradients(const Row* rows, std::int64_t count, float scale, bool add,
                     const Parameters<float>& g, std::int64_t part) {
  const Target target = {scale, add};
  const auto share = [](std::int64_t number, int limit) {
    const auto begin = static_cast<int>(number * kRowsPerPart);
    return std::pair{begin, std::min(begin + static_cast<int>(kRowsPerPart), limit)};
  };
  if (part < 15) {
    const auto [begin, end] = share(part, kHidden1);
    outer_sums(
        rows, count, [](const Row& r) { return r.flat; }, [](const Row& r) { return r.d_hidden1; },
        kFlat, begin, end, target, g.fc1_weight, g.fc1_bias);
  } else if (part < 17) {
    const auto [begin, end] = share(part - 15, kConv2);
    conv2_sums(rows, count, begin, end, target, g);
  } else if (part < 28) {
    const auto [begin, end] = share(part - 17, kHidden2);
    outer_sums(
        rows, count, [](const Row& r) { return r.hidden1; },
        [](const Row& r) { return r.d_hidden2; }, kHidden1, begin, end, target, g.fc2_weight,
        g.fc2_bias);
  } else if (part == 28) {
    conv1_sums(rows, count, target, g);
  } else {
    outer_sums(
        rows, count, [](const Row& r) { return r.hidden2; },
        [](const Row& r) { return r.d_logits; }, kHidden2, 0, kClasses, target, g.fc3_weight,
        g.fc3_bias);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(RunImage);
HWY_EXPORT(RunTrunk);
HWY_EXPORT(RunTrunkBackward);
HWY_EXPORT(WeightGradients);

double cifar_net::run_image(const Parameters<const float>& weights, const Packed& packed,
                            const float* image, float* logits, Row* row, std::int64_t label,
                            float share) {
  return HWY_DYNAMIC_DISPATCH(RunImage)(weights, packed, image, logits, row, label, share);
}

void cifar_net::run_trunk(const Parameters<const float>& weights, const Packed& packed,
                          const float* image, float* hidden2) {
  HWY_DYNAMIC_DISPATCH(RunTrunk)(weights, packed, image, hidden2);
}

void cifar_net::run_trunk_backward(const Parameters<const float>& weights, const Packed& packed,
                                   const float* image, const float* d_hidden2, Row& row) {
  HWY_DYNAMIC_DISPATCH(RunTrunkBackward)(weights, packed, image, d_hidden2, row);
}

void cifar_net::weight_gradients(const Row* rows, std::int64_t count, float scale, bool add,
                                 const Parameters<float>& gradients, std::int64_t part) {
  HWY_DYNAMIC_DISPATCH(WeightGradients)(rows, count, scale, add, gradients, part);
}

void cifar_net::pack(const Parameters<const float>& weights, Packed& packed) {
  std::memset(&packed, 0, sizeof(packed));
  for (int out = 0; out < kConv2; ++out) {
    for (int in = 0; in < kConv1; ++in) {
      for (int tap = 0; tap < 25; ++tap) {
        const float weight = weights.conv2_weight[(out * kConv1 + in) * 25 + tap];
        packed.by_input[(tap * kConv1 + in) * kConv2 + out] = weight;
        packed.by_output[out * kPadded + tap * kPixel + in] = weight;
      }
    }
  }
}

}  // namespace tandem
#endif
