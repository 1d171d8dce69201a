// models/families/qwen3.cpp — Qwen3 (dense): RMSNorm, grouped heads with norms of q and k, rotary positions, SwiGLU.
#include <memory>

#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {
namespace {

BlockNames names(std::int64_t layer, bool attention_bias) {
  const std::string block = fmt::format("model.layers.{}.", layer);
  const std::string attention = block + "self_attn.";
  const std::string mlp = block + "mlp.";
  BlockNames n;
  n.attention_norm = {block + "input_layernorm.weight"};
  n.qkv = {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"};
  n.qk_norm = {attention + "q_norm.weight", attention + "k_norm.weight"};
  n.attention_out = {attention + "o_proj.weight"};
  if (attention_bias) {
    n.qkv_bias = {attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"};
    n.attention_out_bias = {attention + "o_proj.bias"};
  }
  n.mlp_norm = {block + "post_attention_layernorm.weight"};
  n.up = {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
  n.down = {mlp + "down_proj.weight"};
  return n;
}

}  // namespace

DecoderSpec describe_qwen3(const HfConfig& c) {
  DecoderSpec spec;
  spec.vocabulary = c.vocab_size;
  spec.layers = c.num_hidden_layers;
  spec.block = {.hidden = c.hidden_size,
                .intermediate = c.intermediate_size,
                .norm = NormKind::kRms,
                .norm_eps = c.norm_eps,
                .attention = {.heads = c.num_attention_heads,
                              .kv_heads = c.num_key_value_heads,
                              .head_dim = c.head_dim,
                              .norm_eps = c.norm_eps,
                              .rotary = std::make_shared<RotaryTable>(c.rope_theta, c.head_dim)},
                .activation = Activation::kSwiGlu};
  spec.block_names = [bias = c.attention_bias](std::int64_t layer) { return names(layer, bias); };
  spec.embedding = "model.embed_tokens.weight";
  spec.final_norm = {"model.norm.weight"};
  spec.output = c.tie_word_embeddings ? "" : "lm_head.weight";
  spec.padding = c.pad_token_id;
  return spec;
}

}  // namespace tandem
