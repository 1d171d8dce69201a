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
  std::shared_ptr<RotaryTable> rotary;  // null: no rotary positions
  std::int64_t window = 0;  // keys that a position sees, its own included; 0: all earlier ones
  bool sinks = false;       // the layer has sinks (AttentionWeights)
  bool norms = false;       // the layer has norms of q and k
  NormKind norm = NormKind::kRms;  // the kind of these norms, one of the RMS norms
  double scale = 0;                // of the scores; 0: 1 / sqrt(head_dim)
  std::int64_t first_head = 0;     // the first of these heads among the heads of the sinks
  std::int64_t padding = 0;        // tokens behind a row's own, if ranks share rows

  [[nodiscard]] float score_scale() const {
    return scale > 0 ? static_cast<float>(scale) : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }
};

/// Each weight may be empty. The sinks are a logit per head, beside the scores in the softmax, with
/// a value of zero.
struct AttentionWeights {
  JoinedWeights q_norm, k_norm, sinks;
};

/// The text before the given rows: `begin` positions, whose keys and values lie in `memory`. The
/// rows' own keys and values are added to it (see Batch::memory). Without autograd.
struct EarlierText {
  std::int64_t begin = 0;
  at::Tensor* memory = nullptr;  // null: there is none
};

/// Returns the context [batch * length, heads * head_dim] of qkv [batch * length, (heads + 2
/// kv_heads) * head_dim]. Keeps qkv, the context and one number per row and head for the backward.
/// `drop`: the probabilities' mask (AttentionProblem). `positions`: Batch::positions, by which
/// documents do not see each other; undefined if each row is one document.
at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                            AttentionWeights weights, EarlierText earlier = {},
                            const DropMask& drop = {}, const at::Tensor& positions = {});

/// Returns the first tokens of the documents among the B * T tokens of `positions` (int64 [B, T] on
/// the CPU), ascending, and then B * T; empty if `positions` is undefined. Throws user_error if the
/// positions do not count each document's tokens from 0.
[[nodiscard]] std::vector<std::int64_t> document_begins(const at::Tensor& positions);

/// Returns the tokens of the longest document; `length` if `begins` is empty, since rows then are
/// documents.
[[nodiscard]] std::int64_t longest_document(std::span<const std::int64_t> begins,
                                            std::int64_t length);

/// Appends the keys and values of `qkv` to the memory, [batch, capacity, 2 kv_heads * head_dim],
/// which grows if it is full.
void remember(const EarlierText& earlier, const at::Tensor& qkv, std::int64_t length,
              const AttentionShape& shape);

}  // namespace tandem
