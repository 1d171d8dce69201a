#include "models/transformer/block_memory.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/device/tensor_memory.hpp"
#include "engine/types/recomputation.hpp"
#include "models/kernels/attention/attention.hpp"
#include "models/kernels/gemm_blocks.hpp"
#include "models/layers/gemm.hpp"
#include "models/layers/token_tiles.hpp"
#include "models/transformer/adapters.hpp"
#include "models/transformer/aten_memory.hpp"

namespace tandem {
namespace {

/// Working memory of attention's tasks, one per thread, as its kernel asks for it, and the rotary
/// positions.
std::int64_t attention_scratch(const AttentionShape& a, const BatchShape& batch) {
  constexpr std::int64_t kQueryRows = 64;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t block = a.heads / a.kv_heads * kQueryRows;
  const std::int64_t seen =
      a.window > 0 ? std::min(batch.length, a.window + kQueryRows - 1) : batch.length;
  const std::int64_t scores = block * std::min(seen, attention_tile_keys()) * 4;
  const std::int64_t weights = size == 2 ? scores / 4 * size : 0;
  const std::int64_t rows = (batch.length + 2 * block) * a.head_dim * size;
  const std::int64_t gradients =
      scores + 2 * batch.length * a.head_dim * 4 + block * a.head_dim * 4;
  const std::int64_t angles = a.rotary != nullptr ? batch.length * a.rotary->dim() * 4 : 0;
  return batch.threads * (scores + weights + rows + gradients) + angles;
}

/// Elements of the MLP half: for each token what is kept; at the peaks beyond that, for each token
/// of a tile; the blocks that malloc keeps; packed by matmuls, in all threads; the weights whose
/// gradients have sums of their own; of a tile's token, what stays allocated.
struct HalfElements {
  std::int64_t kept, forward, backward;
  std::vector<std::int64_t> blocks, tile_blocks;
  std::int64_t packed, weights, stays;
};

HalfElements dense_half(const BlockShape& shape, std::int64_t tile) {
  const std::int64_t up = shape.intermediate * inputs_per_output(shape.activation);
  const bool again = is_recomputation();
  // Forward has the norm's result beside what is kept. The activation, and in backward its
  // gradient, are in memory that stays.
  HalfElements half{.kept = again ? 0 : up,
                    .forward = shape.hidden,
                    .backward = 0,
                    .blocks = {},
                    .tile_blocks = {shape.hidden},
                    .packed = std::max(shape.hidden * up, tile * shape.intermediate),
                    .weights = (up + shape.intermediate) * shape.hidden,
                    .stays = shape.intermediate + (again ? up : 0)};
  if (!again) {
    half.blocks.push_back(up);
  }
  return half;
}

HalfElements expert_half(const BlockShape& shape, const BatchShape& batch, std::int64_t tile) {
  const ExpertShape& e = shape.experts;
  const std::int64_t up = e.width * inputs_per_output(e.activation);
  // Rows before the activation, logits, and the routes' four numbers. Beyond them the norm's
  // result, the rows at the hidden width and the activation; in backward also the gradient of the
  // output's rows.
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t routes = e.per_token * 4 * 4 / size;
  // twice an equal one
  const std::int64_t share = ceil_div(2 * tile * e.per_token, e.count);
  const std::int64_t made = e.per_token * up + e.count + routes;
  const std::int64_t observed = shape.balance != nullptr ? e.count : 0;
  const bool again = is_recomputation();
  HalfElements half{
      .kept = observed + (again ? 0 : made),
      .forward = shape.hidden + e.per_token * (shape.hidden + e.width) + (again ? made : 0),
      .backward = shape.hidden + e.per_token * shape.hidden +
                  std::max(shape.hidden, e.per_token * e.width) + (again ? made : 0),
      .blocks = {},
      .tile_blocks = {e.per_token * up, e.per_token * e.width, e.per_token * shape.hidden,
                      shape.hidden},
      .packed = batch.threads * shape.hidden * std::max(up, share),
      .weights = e.count * (up + e.width) * shape.hidden,
      .stays = 0};
  return half;
}

ActivationBytes activations_without_adapters(const BlockShape& shape, const BatchShape& batch) {
  if (batch.accelerator) {
    return aten::block_memory(shape, batch);
  }
  const AttentionShape& a = shape.attention;
  const bool shares = batch.sharers > 1;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const std::int64_t tile = std::min(tokens, kTileTokens);
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t qkv = q + 2 * a.kv_heads * a.head_dim;
  const HalfElements half =
      shape.experts.count > 0 ? expert_half(shape, batch, tile) : dense_half(shape, tile);
  // Kept: qkv, context with a number per head, the middle of the block, what is normed before it
  // is added, and what the MLP keeps.
  const std::int64_t normed = shape.norms_sums ? 2 * shape.hidden : 0;
  // Where rows are shared: qkv of whole rows and some heads, of which there is one of keys at
  // least, and the context before and behind the exchange.
  const std::int64_t exchanged =
      shares ? q + 2 * std::max(a.kv_heads, batch.sharers) * a.head_dim : qkv;
  const std::int64_t contexts = (shares ? 2 : 1) * q;
  const std::int64_t kept = exchanged + contexts + shape.hidden + normed + half.kept;
  ActivationBytes bytes{.output = tokens * shape.hidden * size,
                        .kept = tokens * (kept * size + a.heads * 4)};
  // An exchange of q, k and v has the tensors that go, or those that it puts together, beside those
  // that came; in backward, too. The tensors that are kept are not all there by then.
  const std::int64_t later = contexts + shape.hidden + normed + half.kept;
  const std::int64_t going =
      shares ? std::max<std::int64_t>({0, qkv + exchanged - later, 3 * q - later}) : 0;
  const std::int64_t behind = shape.hidden + normed / 2 + half.kept;  // the middle and the MLP's
  const std::int64_t attention =
      shares
          ? std::max({2 * q, exchanged, exchanged + std::max(exchanged, qkv) - contexts}) - behind
          : q + qkv - behind;
  bytes.forward = std::max(tile * half.forward, tokens * going) * size;
  // The gradients of output and middle, and in the MLP a tile's or, its part being gone and the
  // middle with it, attention's. Dropout's gradient lies beside the residual path's.
  const std::int64_t dropped = shape.dropout.rates.residual > 0 ? shape.hidden : 0;
  const auto sums = [&](std::int64_t weights) {
    return TiledGradients::bytes(batch.type, tokens, weights, batch.blocks);
  };
  // A projection's backward has sums of its own. The last one has neither the MLP's part of what is
  // kept nor the middle any more, the first one nothing at all.
  const std::int64_t last = q - behind;
  const std::int64_t first = qkv - exchanged - contexts - normed - half.kept;
  bytes.backward =
      tokens * (2 * shape.hidden + dropped) * size +
      std::max({tile * half.backward * size + sums(half.weights), tokens * attention * size,
                tokens * last * size + sums(q * shape.hidden),
                tokens * first * size + sums(qkv * shape.hidden)});
  if (is_recomputation() && !shape.norms_sums && dropped == 0) {
    // The output has no memory.
    bytes.kept -= bytes.output;
    bytes.forward += bytes.output;
  }
  std::vector<std::int64_t> widths = {qkv, q, shape.hidden, shape.hidden};
  if (shares) {
    widths.insert(widths.end(), {exchanged, q});
  }
  widths.insert(widths.end(), half.blocks.begin(), half.blocks.end());
  if (shape.norms_sums) {
    widths.insert(widths.end(), {shape.hidden, shape.hidden});
  }
  for (const std::int64_t width : widths) {
    bytes.spare += kept_of_tensor(tokens * width * size);
  }
  for (const std::int64_t width : half.tile_blocks) {
    bytes.spare += kept_of_tensor(tile * width * size);
  }
  if (is_recomputation()) {  // gaps between boundaries that the widest blocks do not fit into
    bytes.spare += tokens * (qkv + (shares ? exchanged : 0)) * size;
  }
  const std::int64_t packed =
      std::max({shape.hidden * qkv, tile * std::max(shape.hidden, q), half.packed});
  AttentionShape share = a;
  share.heads = a.heads / batch.sharers;
  share.kv_heads = std::max<std::int64_t>(1, a.kv_heads / batch.sharers);
  bytes.scratch =
      packed_bytes(batch.type, packed) + attention_scratch(share, batch) + tile * half.stays * size;
  return bytes;
}

}  // namespace

ActivationBytes block_activations(const BlockShape& shape, const BatchShape& batch) {
  ActivationBytes bytes = activations_without_adapters(shape, batch);
  const ActivationBytes more = adapter_activations(shape.adapter_sizes, shape.adapters, batch);
  bytes.kept += more.kept;
  bytes.forward += more.forward;
  bytes.backward += more.backward;
  bytes.spare += more.spare;
  return bytes;
}

}  // namespace tandem
