// models/cifar/kernels/cifar_net.hpp — the CIFAR-10 net in fp32 on the CPU: forward and backward of
// one image at a time.
//
// An image's forward, loss and backward down to the convolutions' weights touch about 300 KB and
// stay in the caches; a matrix library would spend more time on starting a matmul of this size than
// on the matmul. Weight gradients of the linear layers are sums over the images, which a second
// pass makes. Only one of the four inputs of a pooled value gets a gradient, so the convolutions'
// backward computes a quarter of the positions. Invariant: the shapes alone fix the order of every
// sum; neither threads nor the number of images in a batch change the bits of an image's values.
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

/// The second convolution's weights, in two layouts for the vector loops.
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

/// Computes the logits [10] of one image [3, 32, 32]. With a `row` it also runs the backward of
/// loss * `share` for `label`, fills `row`, and returns the loss; without one it returns 0. Any
/// thread.
double run_image(const Parameters<const float>& weights, const Packed& packed, const float* image,
                 float* logits, Row* row = nullptr, std::int64_t label = 0, float share = 0);

/// Computes fc2's activations [84] of one image, for a net that has another part in place of fc3.
/// Any thread.
void run_trunk(const Parameters<const float>& weights, const Packed& packed, const float* image,
               float* hidden2);
/// Runs the backward of `d_hidden2` [84], the gradient of those activations, and fills `row` for
/// the second pass. It runs the forward again. Any thread.
void run_trunk_backward(const Parameters<const float>& weights, const Packed& packed,
                        const float* image, const float* d_hidden2, Row& row);

/// The number of parts of the second pass, each of which writes other gradients. The last part is
/// fc3's.
inline constexpr std::int64_t kGradientParts = 30;
inline constexpr std::int64_t kTrunkGradientParts = kGradientParts - 1;
/// Computes part `part` of gradients = scale * sum over rows, or with `add` gradients += that. Any
/// thread.
void weight_gradients(const Row* rows, std::int64_t count, float scale, bool add,
                      const Parameters<float>& gradients, std::int64_t part);

}  // namespace tandem::cifar_net
