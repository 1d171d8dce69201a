// models/layers/aten/row_ops.hpp — a transformer's matmuls and the operations between them, each as
// one node of the graph on a device: LibTorch's matmuls, and the kernels of models/gpu/.
//
// A GPU waits for the host if a layer is many small operations. A block of these nodes needs a
// third of the launches of plain operations, and a third of their bytes. Gradients of weights go
// straight to their place. On the CPU (tests, a fake GPU) the same code runs on the host. Compute
// lane.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "models/kernels/activation.hpp"
#include "models/kernels/norm.hpp"
#include "models/layers/attention.hpp"
#include "models/layers/weights.hpp"

namespace tandem::aten {

/// Whether a result is read. One that is not has its place in the graph, and no values: a layer's
/// output while the layer is recomputed for its backward (engine/types/recomputation.hpp).
enum class Result : std::uint8_t { kRead, kUnread };

/// As LinearWeights::forward(), without adapters. x: [rows, in].
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const JoinedWeights& weight,
                                const JoinedWeights& bias, bool input_major,
                                Result result = Result::kRead);

/// Returns a + b, [rows, width] both.
[[nodiscard]] at::Tensor sum(const at::Tensor& a, const at::Tensor& b, Result result);

/// The norm over the last dimension by plain operations; only LayerNorm has a `bias`.
[[nodiscard]] at::Tensor plain_norm(NormKind kind, double eps, const at::Tensor& x,
                                    const at::Tensor& weight, const at::Tensor& bias);

/// The norm of x over its last dimension, and x for the path around the norm, so that one kernel
/// makes the gradient of both. Only LayerNorm has a `bias`. LayerNorm, and rows that are too wide,
/// go through plain_norm().
struct Normed {
  at::Tensor y, x;
};
[[nodiscard]] bool can_norm(std::int64_t width);  // whether that kernel takes rows of this width
[[nodiscard]] Normed norm(NormKind kind, double eps, const at::Tensor& x,
                          const JoinedWeights& weight, const JoinedWeights& bias);

/// q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], as attention reads them.
struct SplitHeads {
  at::Tensor q, k, v;
};
/// Returns whether split_heads() takes this shape.
[[nodiscard]] bool can_split_heads(const AttentionShape& shape);
/// Splits qkv [rows, (heads + 2 kv_heads) * head_dim]. q and k are normed if the layer has such
/// norms, and rotated if `cosine` and `sine` are defined. cosine, sine: [length, rotary / 2], fp32;
/// row r is at r % length.
[[nodiscard]] SplitHeads split_heads(const at::Tensor& qkv, const AttentionShape& shape,
                                     const AttentionWeights& weights, const at::Tensor& cosine,
                                     const at::Tensor& sine);

/// x: [..., width * inputs_per_output(kind)] -> [..., width].
[[nodiscard]] at::Tensor activation(Activation kind, const at::Tensor& x);

/// Returns the gradient of x, contiguous, from the activation's gradient. No autograd.
[[nodiscard]] at::Tensor activation_gradient(Activation kind, const at::Tensor& x,
                                             const at::Tensor& of_a);

/// Returns -log softmax(logits)[label] of each row, 0 for `ignored`; fp32 [rows]. With `scale`, one
/// fp32 number on the device, the logits become their gradient times it. No autograd.
[[nodiscard]] at::Tensor losses_of_rows(const at::Tensor& logits, const at::Tensor& labels,
                                        std::int64_t ignored, const at::Tensor& scale);

}  // namespace tandem::aten
