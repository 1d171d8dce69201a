#include "models/layers/plain_memory.hpp"

#include <algorithm>

#include "models/layers/plain.hpp"

namespace tandem::plain {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kNormFloats = 2;  // of a row: mean and scale

/// Of both norms and of attention, for each token.
struct TokenBytes {
  std::int64_t kept = 0;
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

TokenBytes attention_memory(const BlockShape& shape, std::int64_t size) {
  const AttentionShape& a = shape.attention;
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t kv = a.kv_heads * a.head_dim;
  const std::int64_t turned = a.rotary != nullptr ? q + kv : 0;
  // Behind the norm; qkv, of which v and the norms of q and k are views; the context. q and k as they were turned: the
  // context then comes out head by head, too, and is copied into rows.
  const std::int64_t rows = turned > 0 ? q : 0;
  TokenBytes bytes{.kept = (shape.hidden + q + 2 * kv + q + turned + rows) * size +
                           (a.heads + kNormFloats) * kFloat};
  // Rotation is in fp32: its input, two products and their sum.
  bytes.forward = turned * 2 * kFloat;
  // Gradients of q, k and v as attention gives them, and of what they were made from.
  bytes.backward = 2 * (q + 2 * kv) * size + turned * 2 * kFloat;
  return bytes;
}

TokenBytes mlp_memory(const BlockShape& shape, std::int64_t size) {
  const std::int64_t parts = inputs_per_output(shape.activation);
  const std::int64_t copies = std::max<std::int64_t>(1, shape.experts_per_token);
  const std::int64_t wide = copies * shape.intermediate;
  // The middle of the block, behind the norm, the MLP's input to its activation, what that gives; gated: also the gate.
  TokenBytes bytes{.kept = (2 * shape.hidden + 2 * parts * wide) * size + kNormFloats * kFloat};
  if (shape.experts >
      0) {  // tokens in the experts' order and what those gave; the router's probabilities
    bytes.kept += 2 * copies * shape.hidden * size + 2 * shape.experts * kFloat;
  }
  // The gradients of the activation, of its inputs, and of the slices that those are.
  bytes.backward = (parts * wide + parts * wide + wide + shape.hidden) * size;
  return bytes;
}

}  // namespace

ActivationBytes block_memory(const BlockShape& shape, const BatchShape& batch) {
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const TokenBytes attention = attention_memory(shape, size);
  const TokenBytes mlp = mlp_memory(shape, size);
  ActivationBytes bytes{.output = tokens * shape.hidden * size,
                        .kept = tokens * (attention.kept + mlp.kept)};
  // What attention makes beside it is gone before the MLP begins.
  bytes.forward = tokens * std::max(shape.hidden * size, attention.forward - mlp.kept);
  bytes.backward = tokens * (std::max(attention.backward, mlp.backward) + 2 * shape.hidden * size);
  return bytes;
}

ActivationBytes loss_memory(std::int64_t hidden, std::int64_t vocabulary, const BatchShape& batch) {
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t asked = std::max<std::int64_t>(0, batch.tokens() - batch.rows);
  const std::int64_t rows = std::min(loss_chunk_rows(vocabulary), asked);
  // A chunk's logits, their logarithms of probabilities and two gradients in fp32, the last one also in the model's type.
  const std::int64_t chunk = rows * vocabulary * (4 * kFloat + (size < kFloat ? size : 0));
  return {.kept = vocabulary * hidden * kFloat + asked * hidden * size,
          .forward = chunk + (vocabulary + asked) * hidden * size,
          .backward = batch.tokens() * hidden * size + vocabulary * hidden * kFloat,
          .loss = true};
}

}  // namespace tandem::plain
