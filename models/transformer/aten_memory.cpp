#include "models/transformer/aten_memory.hpp"

#include <algorithm>

#include "models/layers/aten/experts.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/layers/aten/row_ops.hpp"

namespace tandem::aten {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kNormFloats = 2;  // of a row: mean and scale

/// Bytes that a norm takes for a row, beside the row: where it is too wide for one kernel, it is
/// computed from a copy in fp32.
std::int64_t norm_bytes(NormKind norm, std::int64_t width) {
  if (norm == NormKind::kLayer || can_norm(width)) {
    return norm == NormKind::kLayer ? kNormFloats * kFloat : 0;
  }
  return kNormFloats * kFloat + (norm == NormKind::kRmsAroundOne ? width * kFloat : 0);
}

/// Elements of both norms and of attention for each token.
struct TokenBytes {
  std::int64_t kept = 0;
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

/// By row blocks of plain operations, which keep each block's weights and which keys it hides, and
/// whose matmuls keep copies of q, k and v in their places.
void add_row_blocks(const LayerShape& shape, const BatchShape& batch, std::int64_t length_of_window,
                    TokenBytes& bytes) {
  const AttentionShape& a = shape.attention;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t qkv = (a.heads + 2 * a.kv_heads) * a.head_dim;
  const std::int64_t block = std::min(batch.length, attention_block_rows());
  const std::int64_t keys = length_of_window > 0 ? std::min(batch.length, length_of_window + block)
                                                 : (batch.length + block) / 2;
  const std::int64_t scores = a.heads * keys;
  const std::int64_t at_once = scores * block / batch.length;  // of a token, as if all had a share
  bytes.kept += scores * (kFloat + size) + keys / batch.rows;
  std::int64_t drawn = 0;
  if (shape.dropout.rates.attention > 0) {
    bytes.kept += a.heads * static_cast<std::int64_t>(sizeof(std::int64_t));  // a row's number
    drawn = drawing_bytes(batch.tokens() * at_once) / batch.tokens();
  }
  // Beside q, k and v, their copies and what comes of a block: scores, scaled and masked; or the
  // masked ones (backward: the gradients on both sides) while a mask is drawn.
  bytes.forward += (qkv + a.heads * a.head_dim) * size + at_once * kFloat +
                   std::max(2 * at_once * kFloat, drawn);
  bytes.backward += std::max(3 * at_once * kFloat, 2 * at_once * kFloat + drawn);
}

TokenBytes attention_memory(const LayerShape& shape, const BatchShape& batch) {
  const AttentionShape& a = shape.attention;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t qkv = q + 2 * a.kv_heads * a.head_dim;
  // Behind the norm; q, k and v as attention reads them; the context in rows.
  TokenBytes bytes{.kept = (shape.hidden + qkv + q) * size + norm_bytes(shape.norm, shape.hidden)};
  if (batch.packed && a.rotary != nullptr) {  // cosines and sines of each token
    bytes.kept += a.rotary->dim() * kFloat;
  }
  (a.norms ? bytes.kept : bytes.forward) += qkv * size;  // what they were made from
  if (!can_split_heads(a)) {  // by plain operations, in fp32, which keep views of it
    const std::int64_t turned = a.rotary != nullptr ? q + a.kv_heads * a.head_dim : 0;
    bytes.kept += a.norms ? 0 : qkv * size;
    bytes.forward += turned * 2 * kFloat;
    bytes.backward += turned * 2 * kFloat;
  }
  // Gradients of q, k and v as attention gives them, and of what they were made from.
  bytes.backward = 2 * qkv * size;
  const bool limited = a.window > 0 && a.window < batch.length;
  if (limited || a.sinks || shape.dropout.rates.attention > 0) {
    add_row_blocks(shape, batch, limited ? a.window : 0, bytes);
  } else {
    bytes.kept += a.heads * kFloat;
    bytes.backward += fused_backward_bytes(batch.rows, batch.length, a);
    if (batch.packed && qkv < 3 * q) {  // copies of keys and values for each head, their gradients
      bytes.kept += 2 * q * size;
      bytes.backward += 2 * q * size;
    }
  }
  return bytes;
}

TokenBytes mlp_memory(const LayerShape& shape, std::int64_t size) {
  const std::int64_t parts = inputs_per_output(shape.activation);
  const std::int64_t wide = shape.intermediate;
  // The middle of the block, behind the norm, the MLP's input to its activation, what that gives.
  TokenBytes bytes{.kept = (2 * shape.hidden + (parts + 1) * wide) * size +
                           norm_bytes(shape.norm, shape.hidden)};
  // The gradients of the activation and of its inputs.
  bytes.backward = ((parts + 1) * wide + shape.hidden) * size;
  if (shape.norms_sums) {  // what attention and MLP add, before its norm
    bytes.kept += 2 * (shape.hidden * size + norm_bytes(shape.norm, shape.hidden));
  }
  return bytes;
}

/// Elements in all, not for each token: rows are padded to whole blocks of an expert.
ActivationBytes expert_memory(const LayerShape& shape, const BatchShape& batch) {
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

ActivationBytes layer_memory(const LayerShape& of_model, const BatchShape& batch) {
  LayerShape shape = of_model;
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
  // Attention's other tensors are gone before the MLP begins.
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
  const std::int64_t chunk = rows * vocabulary * size;  // of logits, which become their gradient
  const std::int64_t gradient = learns ? vocabulary * hidden * kFloat : 0;
  return {.kept = gradient + asked * hidden * size,
          .forward = chunk + ((learns ? vocabulary : 0) + asked) * hidden * size,
          .backward = batch.tokens() * hidden * size + gradient,
          .loss = true};
}

}  // namespace tandem::aten
