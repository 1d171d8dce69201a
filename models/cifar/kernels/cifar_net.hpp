// models/cifar/kernels/cifar_net.hpp — the CIFAR-10 net in fp32 on the CPU: forward and backward of
// one image at a time.
//
// An image's forward, loss and backward down to the convolutions' weights touch about 300 KB and
// stay in the caches; what a matrix library spends on starting a matmul of this size is more than
// the matmul. Weight gradients of the linear layers are sums over the images, made in a second
// pass. Only one of the four inputs of a pooled value gets a gradient, so the convolutions'
// backward visits a quarter of the places. Invariant: every sum has an order of its own, fixed by
// the shapes; neither threads nor the number of images in a batch change the bits of an image's
// values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cifar_net {

inline constexpr int kConv1 = 6;  // channels
inline constexpr int kConv2 = 16;
inline constexpr int kFlat = 400;
inline constexpr int kHidden1 = 120;
inline constexpr int kHidden2 = 84;
inline constexpr int kClasses = 10;
inline constexpr int kImage = 3 * 32 * 32;

/// Parameters or their gradients, laid out as torch does.
template <class Float>
struct Parameters {
  Float* conv1_weight;  // [6, 3, 5, 5]
  Float* conv1_bias;
  Float* conv2_weight;  // [16, 6, 5, 5]
  Float* conv2_bias;
  Float* fc1_weight;  // [120, 400]
  Float* fc1_bias;
  Float* fc2_weight;  // [84, 120]
  Float* fc2_bias;
  Float* fc3_weight;  // [10, 84]
  Float* fc3_bias;
};

/// The second convolution's weights, arranged anew for the vector loops.
struct Packed {
  alignas(64) float by_input[150 * kConv2];   // [ky, kx, in][out]
  alignas(64) float by_output[kConv2 * 200];  // [out][ky, kx, in padded to 8]
};
void pack(const Parameters<const float>& weights, Packed& packed);

/// The values of one image that the second pass needs.
struct Row {
  alignas(64) float flat[kFlat];  // input of fc1
  alignas(64) float hidden1[128];
  alignas(64) float hidden2[96];
  alignas(64) float d_logits[16];
  alignas(64) float d_hidden2[96];
  alignas(64) float d_hidden1[128];
  alignas(64) float d_conv1[kConv1 * 3 * 5 * 8];  // [out, in, ky, kx padded to 8]
  alignas(64) float d_conv1_bias[8];
  alignas(64) float d_conv2[kConv2 * 200];  // [out, ky, kx, in padded to 8]
  alignas(64) float d_conv2_bias[kConv2];
};

/// Logits [10] of one image [3, 32, 32]. With a `row` also its loss for `label`, returned, and in
/// `row` what its backward leaves; the gradients there are those of loss * `share`. Any thread.
double run_image(const Parameters<const float>& weights, const Packed& packed, const float* image,
                 float* logits, Row* row = nullptr, std::int64_t label = 0, float share = 0);

/// The net up to fc2 alone, for what comes behind it instead of fc3: its activations [84] of one
/// image. Any thread.
void run_trunk(const Parameters<const float>& weights, const Packed& packed, const float* image,
               float* hidden2);
/// Their backward, by running the forward once more: in `row` what `d_hidden2` [84] leaves for the
/// second pass. Any thread.
void run_trunk_backward(const Parameters<const float>& weights, const Packed& packed,
                        const float* image, const float* d_hidden2, Row& row);

/// Parts that the second pass is cut into; each writes gradients of its own. The last one is fc3's.
inline constexpr std::int64_t kGradientParts = 30;
inline constexpr std::int64_t kTrunkGradientParts = kGradientParts - 1;
/// gradients = scale * sum over rows, or added to what is there. Part `part`; any thread.
void weight_gradients(const Row* rows, std::int64_t count, float scale, bool add,
                      const Parameters<float>& gradients, std::int64_t part);

}  // namespace tandem::cifar_net
