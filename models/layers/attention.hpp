// models/layers/attention.hpp — causal self-attention as one node: norm of q and k, rotation, softmax, values.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "models/layers/rotary.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double norm_eps = 1e-6;               // of the norms of q and k
  std::shared_ptr<RotaryTable> rotary;  // null: positions come from elsewhere
};

/// qkv: [batch * length, (heads + 2 kv_heads) * head_dim] -> context [batch * length, heads * head_dim]. The norms may be
/// empty. Kept for the backward: qkv, the context and one number per row and head.
at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                            JoinedWeights q_norm, JoinedWeights k_norm);

}  // namespace tandem
