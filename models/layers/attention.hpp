// models/layers/attention.hpp — causal self-attention as one node: norm of q and k, rotation,
// softmax, values.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/kernels/dropout.hpp"
#include "models/kernels/norm.hpp"
#include "models/layers/rotary.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double norm_eps = 1e-6;               // of the norms of q and k
  std::shared_ptr<RotaryTable> rotary;  // null: positions come from elsewhere
  std::int64_t window = 0;  // keys that a position sees, its own included; 0: all earlier ones
  bool sinks = false;       // the layer has sinks (AttentionWeights)
  bool norms = false;       // the layer has norms of q and k
  NormKind norm = NormKind::kRms;  // which they are, one of the RMS norms
  double scale = 0;                // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t first_head = 0;     // the sinks are of more heads, these from here on
  std::int64_t padding = 0;        // tokens behind a row's own, where ranks share rows

  [[nodiscard]] float score_scale() const {
    return scale > 0 ? static_cast<float>(scale) : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }
};

/// Each weight may be empty. The sinks are a logit per head, beside the scores in the softmax, with
/// a value of zero.
struct AttentionWeights {
  JoinedWeights q_norm, k_norm, sinks;
};

/// The text before the rows at hand: `begin` positions, whose keys and values lie in `memory`, the
/// rows' own are added (see Batch::memory). Without autograd.
struct EarlierText {
  std::int64_t begin = 0;
  at::Tensor* memory = nullptr;  // null: there is none
};

/// qkv: [batch * length, (heads + 2 kv_heads) * head_dim] -> context [batch * length, heads *
/// head_dim]. Kept for the backward: qkv, the context and one number per row and head. `drop`: of
/// the probabilities (AttentionProblem). `positions`: Batch::positions, each document is alone;
/// undefined where a row is one.
at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                            AttentionWeights weights, EarlierText earlier = {},
                            const DropMask& drop = {}, const at::Tensor& positions = {});

/// Where documents begin in the rows * length tokens of `positions`, int64 [B, T] on the CPU,
/// ascending, and B * T behind them; empty if `positions` is undefined. Throws user_error where a
/// row's positions do not count up from 0, again and again.
[[nodiscard]] std::vector<std::int64_t> document_begins(const at::Tensor& positions);

/// Tokens of the longest of them; `length` where there are none: then rows are documents.
[[nodiscard]] std::int64_t longest_document(std::span<const std::int64_t> begins,
                                            std::int64_t length);

/// Puts the keys and values of `qkv` behind those in the memory, [batch, capacity, 2 kv_heads *
/// head_dim], which grows.
void remember(const EarlierText& earlier, const at::Tensor& qkv, std::int64_t length,
              const AttentionShape& shape);

}  // namespace tandem
