#include "models/transformer/aten_memory.hpp"

#include <algorithm>

#include "models/layers/aten/experts.hpp"
#include "models/layers/aten/layers.hpp"

namespace tandem::aten {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kNormFloats = 2;  // of a row: mean and scale

/// Of a row that a norm takes: around one it is computed from a copy in fp32.
std::int64_t norm_bytes(NormKind norm, std::int64_t width, std::int64_t size) {
  const bool copies = norm == NormKind::kRmsAroundOne && size < kFloat;
  return kNormFloats * kFloat + (copies ? width * kFloat : 0);
}

/// Elements of both norms and of attention for each token.
struct TokenBytes {
  std::int64_t kept = 0;
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

/// By row blocks of plain operations, which keep each block's weights and which keys it hides. Of
/// q, k and v matmuls keep copies of their own; qkv itself only the norms keep.
void add_row_blocks(const BlockShape& shape, const BatchShape& batch, std::int64_t length_of_window,
                    TokenBytes& bytes) {
  const AttentionShape& a = shape.attention;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t kv = a.kv_heads * a.head_dim;
  const std::int64_t qkv = a.heads * a.head_dim + 2 * kv;
  const std::int64_t block = std::min(batch.length, attention_block_rows());
  const std::int64_t keys = length_of_window > 0 ? std::min(batch.length, length_of_window + block)
                                                 : (batch.length + block) / 2;
  const std::int64_t scores = a.heads * keys;
  const std::int64_t at_once = scores * block / batch.length;  // of a token, as if all had a share
  bytes.kept += (kv + (a.norms ? qkv : 0)) * size + scores * (kFloat + size) + keys / batch.rows;
  std::int64_t drawn = 0;
  if (shape.dropout.rates.attention > 0) {
    bytes.kept += a.heads * static_cast<std::int64_t>(sizeof(std::int64_t));  // a row's number
    drawn = drawing_bytes(batch.tokens() * at_once) / batch.tokens();
  }
  // Scores, scaled and masked; or the masked ones (backward: the gradients on both sides) while a
  // mask is drawn.
  bytes.forward = std::max(bytes.forward, (a.norms ? 0 : qkv) * size + at_once * kFloat +
                                              std::max(2 * at_once * kFloat, drawn));
  bytes.backward += std::max(3 * at_once * kFloat, 2 * at_once * kFloat + drawn);
}

TokenBytes attention_memory(const BlockShape& shape, const BatchShape& batch) {
  const AttentionShape& a = shape.attention;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t kv = a.kv_heads * a.head_dim;
  const std::int64_t turned = a.rotary != nullptr ? q + kv : 0;
  // Behind the norm; the context in rows; q and k as they were turned.
  TokenBytes bytes{.kept = (shape.hidden + q + turned) * size +
                           norm_bytes(shape.norm, shape.hidden, size)};
  if (batch.packed && turned > 0) {  // cosines and sines of each token
    bytes.kept += a.rotary->dim() * kFloat;
  }
  if (a.norms) {
    bytes.kept += norm_bytes(a.norm, q + kv, size) - kNormFloats * kFloat;
  }
  // Rotation is in fp32: its input, two products and their sum.
  bytes.forward = turned * 2 * kFloat;
  // Gradients of q, k and v as attention gives them, and of what they were made from.
  bytes.backward = 2 * (q + 2 * kv) * size + turned * 2 * kFloat;
  const bool limited = a.window > 0 && a.window < batch.length;
  if (limited || a.sinks || shape.dropout.rates.attention > 0) {
    add_row_blocks(shape, batch, limited ? a.window : 0, bytes);
  } else {
    // qkv, of which v and the norms of q and k are views; behind turned heads the context comes out
    // head by head, too.
    bytes.kept += (q + 2 * kv + (turned > 0 ? q : 0)) * size + a.heads * kFloat;
    if (batch.packed && kv < q) {  // copies of keys and values for each head, and their gradients
      bytes.kept += 2 * q * size;
      bytes.backward += 2 * q * size;
    }
  }
  return bytes;
}

TokenBytes mlp_memory(const BlockShape& shape, std::int64_t size) {
  const std::int64_t parts = inputs_per_output(shape.activation);
  const std::int64_t wide = shape.intermediate;
  // The middle of the block, behind the norm, the MLP's input to its activation, what that gives;
  // gated: also the gate.
  TokenBytes bytes{.kept = (2 * shape.hidden + 2 * parts * wide) * size +
                           norm_bytes(shape.norm, shape.hidden, size)};
  // The gradients of the activation, of its inputs, and of the slices that those are.
  bytes.backward = (parts * wide + parts * wide + wide + shape.hidden) * size;
  if (shape.norms_sums) {  // what attention and MLP add, before its norm
    bytes.kept += 2 * (shape.hidden * size + norm_bytes(shape.norm, shape.hidden, size));
  }
  return bytes;
}

/// Elements in all, not for each token: rows are padded to whole blocks of an expert.
ActivationBytes expert_memory(const BlockShape& shape, const BatchShape& batch) {
  const ExpertShape& e = shape.experts;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const std::int64_t up = e.width * inputs_per_output(e.activation);
  const std::int64_t rows = padded_expert_rows(tokens * e.per_token, e.count);
  // One of the two layers' matrices side by side, where they are not so in the unit.
  const std::int64_t matrices = e.count * shape.hidden * up;
  const std::int64_t copies = e.layout == ExpertLayout::kApart ? 2 * matrices * size : 0;
  ActivationBytes bytes;
  // The middle of the block, behind the norm, rows before the activation, logits and shares.
  bytes.kept =
      tokens * (2 * shape.hidden * size + (2 * e.count + 2 * e.per_token + kNormFloats) * kFloat) +
      rows * (up * size + 2 * sizeof(std::int64_t));
  bytes.forward = rows * (2 * shape.hidden + e.width) * size + copies;
  // Rows of both widths and their gradients; the matrices' gradient in fp32.
  bytes.backward =
      rows * (3 * shape.hidden + 2 * up + 2 * e.width) * size + copies + matrices * kFloat;
  return bytes;
}

}  // namespace

ActivationBytes block_memory(const BlockShape& of_model, const BatchShape& batch) {
  BlockShape shape = of_model;
  std::int64_t exchanged = 0;  // elements of a token, before attention's exchange and behind it
  if (batch.sharers > 1) {
    AttentionShape& a = shape.attention;
    exchanged = (2 * a.heads + 2 * a.kv_heads) * a.head_dim;
    a.kv_heads = std::max(a.kv_heads, batch.sharers);  // copies of few
  }
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  TokenBytes attention = attention_memory(shape, batch);
  attention.kept += exchanged * size;
  attention.backward += exchanged * size;
  ActivationBytes mlp;
  if (shape.experts.count > 0) {
    mlp = expert_memory(shape, batch);
  } else {
    const TokenBytes each = mlp_memory(shape, size);
    mlp = {.kept = tokens * each.kept, .backward = tokens * each.backward};
  }
  const std::int64_t boundary = tokens * shape.hidden * size;
  // Beside what was dropped lies what it is made of, and in backward the gradient that goes past
  // it.
  const std::int64_t dropped =
      shape.dropout.rates.residual > 0 ? boundary + drawing_bytes(tokens * shape.hidden) : 0;
  // What attention makes beside it is gone before the MLP begins.
  return {
      .output = boundary,
      .kept = tokens * attention.kept + mlp.kept,
      .forward = std::max({boundary + dropped, mlp.forward, tokens * attention.forward - mlp.kept}),
      .backward = std::max(tokens * attention.backward, mlp.backward + dropped) + 2 * boundary,
      .scratch = batch.packed ? document_mask_bytes(batch) : 0};
}

ActivationBytes loss_memory(std::int64_t hidden, std::int64_t vocabulary, const BatchShape& batch,
                            bool learns) {
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t asked = std::max<std::int64_t>(0, batch.tokens() - batch.rows);
  const std::int64_t rows = std::min(loss_chunk_rows(vocabulary), asked);
  // A chunk's logits, their logarithms of probabilities and two gradients in fp32, the last one
  // also in the model's type.
  const std::int64_t chunk = rows * vocabulary * (4 * kFloat + (size < kFloat ? size : 0));
  const std::int64_t gradient = learns ? vocabulary * hidden * kFloat : 0;
  return {.kept = gradient + asked * hidden * size,
          .forward = chunk + ((learns ? vocabulary : 0) + asked) * hidden * size,
          .backward = batch.tokens() * hidden * size + gradient,
          .loss = true};
}

}  // namespace tandem::aten
