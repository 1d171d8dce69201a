#include "models/transformer/layer_memory.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/tensors/tensor_memory.hpp"
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

HalfElements dense_half(const LayerShape& shape, std::int64_t tile) {
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

HalfElements expert_half(const LayerShape& shape, const BatchShape& batch, std::int64_t tile) {
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

/// Elements per token of what a block computes from a tile of rows.
struct LayerElements {
  bool shares = false;    // rows: ranks exchange q, k and v
  std::int64_t tile = 0;  // tokens
  std::int64_t q = 0;     // all heads
  std::int64_t qkv = 0;
  std::int64_t exchanged = 0;  // qkv behind the exchange
  std::int64_t contexts = 0;   // before and behind the exchange back
  std::int64_t normed = 0;     // what is normed before it is added
  HalfElements half;           // of the MLP or the experts

  /// Beside qkv: the contexts, the middle of the block, what is normed, and what the MLP keeps.
  [[nodiscard]] std::int64_t kept_later(std::int64_t hidden) const {
    return contexts + hidden + normed + half.kept;
  }
};

LayerElements elements_of(const LayerShape& shape, const BatchShape& batch) {
  const AttentionShape& a = shape.attention;
  LayerElements of{.shares = batch.sharers > 1, .tile = std::min(batch.tokens(), kTileTokens)};
  of.q = a.heads * a.head_dim;
  of.qkv = of.q + 2 * a.kv_heads * a.head_dim;
  // Where rows are shared: qkv of whole rows and some heads, of which there is one of keys at
  // least.
  of.exchanged = of.shares ? of.q + 2 * std::max(a.kv_heads, batch.sharers) * a.head_dim : of.qkv;
  of.contexts = (of.shares ? 2 : 1) * of.q;
  of.normed = shape.norms_sums ? 2 * shape.hidden : 0;
  of.half =
      shape.experts.count > 0 ? expert_half(shape, batch, of.tile) : dense_half(shape, of.tile);
  return of;
}

std::int64_t forward_bytes(const LayerShape& shape, const BatchShape& batch,
                           const LayerElements& of) {
  // An exchange of q, k and v has the tensors that go, or those that it puts together, beside those
  // that came; in backward, too. The tensors that are kept are not all there by then.
  const std::int64_t later = of.kept_later(shape.hidden);
  const std::int64_t going =
      of.shares ? std::max<std::int64_t>({0, of.qkv + of.exchanged - later, 3 * of.q - later}) : 0;
  return std::max(of.tile * of.half.forward, batch.tokens() * going) *
         static_cast<std::int64_t>(bytes_of(batch.type));
}

/// The gradients of output and middle, and in the MLP a tile's or, its part being gone and the
/// middle with it, attention's. Dropout's gradient lies beside the residual path's.
std::int64_t backward_bytes(const LayerShape& shape, const BatchShape& batch,
                            const LayerElements& of) {
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const std::int64_t behind =
      shape.hidden + of.normed / 2 + of.half.kept;  // the middle and the MLP's
  const std::int64_t attention =
      of.shares ? std::max({2 * of.q, of.exchanged,
                            of.exchanged + std::max(of.exchanged, of.qkv) - of.contexts}) -
                      behind
                : of.q + of.qkv - behind;
  const std::int64_t dropped = shape.dropout.rates.residual > 0 ? shape.hidden : 0;
  const auto sums = [&](std::int64_t weights) {
    return TiledGradients::bytes(batch.type, tokens, weights, batch.blocks);
  };
  // A projection's backward has sums of its own. The last one has neither the MLP's part of what is
  // kept nor the middle any more, the first one nothing at all.
  const std::int64_t last = of.q - behind;
  const std::int64_t first = of.qkv - of.exchanged - of.contexts - of.normed - of.half.kept;
  return tokens * (2 * shape.hidden + dropped) * size +
         std::max({of.tile * of.half.backward * size + sums(of.half.weights),
                   tokens * attention * size, tokens * last * size + sums(of.q * shape.hidden),
                   tokens * first * size + sums(of.qkv * shape.hidden)});
}

/// Bytes that allocators hold for the tensors above what these need.
std::int64_t spare_bytes(const LayerShape& shape, const BatchShape& batch,
                         const LayerElements& of) {
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  std::vector<std::int64_t> widths = {of.qkv, of.q, shape.hidden, shape.hidden};
  if (of.shares) {
    widths.insert(widths.end(), {of.exchanged, of.q});
  }
  widths.insert(widths.end(), of.half.blocks.begin(), of.half.blocks.end());
  if (shape.norms_sums) {
    widths.insert(widths.end(), {shape.hidden, shape.hidden});
  }
  std::int64_t spare = 0;
  for (const std::int64_t width : widths) {
    spare += kept_of_tensor(tokens * width * size);
  }
  for (const std::int64_t width : of.half.tile_blocks) {
    spare += kept_of_tensor(of.tile * width * size);
  }
  if (is_recomputation()) {  // gaps between boundaries that the widest blocks do not fit into
    spare += tokens * (of.qkv + (of.shares ? of.exchanged : 0)) * size;
  }
  return spare;
}

std::int64_t scratch_bytes(const LayerShape& shape, const BatchShape& batch,
                           const LayerElements& of) {
  const std::int64_t packed =
      std::max({shape.hidden * of.qkv, of.tile * std::max(shape.hidden, of.q), of.half.packed});
  AttentionShape share = shape.attention;
  share.heads /= batch.sharers;
  share.kv_heads = std::max<std::int64_t>(1, shape.attention.kv_heads / batch.sharers);
  return packed_bytes(batch.type, packed) + attention_scratch(share, batch) +
         of.tile * of.half.stays * static_cast<std::int64_t>(bytes_of(batch.type));
}

ActivationBytes activations_without_adapters(const LayerShape& shape, const BatchShape& batch) {
  if (batch.accelerator) {
    return aten::layer_memory(shape, batch);
  }
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const LayerElements of = elements_of(shape, batch);
  const std::int64_t kept = of.exchanged + of.kept_later(shape.hidden);
  ActivationBytes bytes{
      .output = tokens * shape.hidden * size,
      .kept = tokens * (kept * size + shape.attention.heads * 4),  // with a number per head
      .forward = forward_bytes(shape, batch, of),
      .backward = backward_bytes(shape, batch, of)};
  if (is_recomputation() && !shape.norms_sums && shape.dropout.rates.residual == 0) {
    // The output has no memory.
    bytes.kept -= bytes.output;
    bytes.forward += bytes.output;
  }
  bytes.spare = spare_bytes(shape, batch, of);
  bytes.scratch = scratch_bytes(shape, batch, of);
  return bytes;
}

}  // namespace

ActivationBytes layer_activations(const LayerShape& shape, const BatchShape& batch) {
  ActivationBytes bytes = activations_without_adapters(shape, batch);
  const ActivationBytes more = adapter_activations(shape.adapter_sizes, shape.adapters, batch);
  bytes.kept += more.kept;
  bytes.forward += more.forward;
  bytes.backward += more.backward;
  bytes.spare += more.spare;
  return bytes;
}

}  // namespace tandem
