// models/families/llama.cpp — Llama 3 and its relatives: Phi-3 (Phi-4) joins its projections,
// Seed-OSS has biases.
#include <memory>

#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {
namespace {

constexpr const char* kLayer = "model.layers.{}.";

BlockNames phi3_names(std::int64_t layer, const HfConfig& c) {
  const std::string block = fmt::format(kLayer, layer);
  BlockNames n = llama_attention_names(layer, c);
  n.qkv = {block + "self_attn.qkv_proj.weight"};
  n.up = {block + "mlp.gate_up_proj.weight"};
  n.down = {block + "mlp.down_proj.weight"};
  return n;
}

}  // namespace

BlockNames llama_attention_names(std::int64_t layer, const HfConfig& c) {
  const std::string block = fmt::format(kLayer, layer);
  const std::string attention = block + "self_attn.";
  BlockNames n;
  n.attention_norm = {block + "input_layernorm.weight"};
  n.qkv = {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"};
  n.attention_out = {attention + "o_proj.weight"};
  if (c.attention_bias) {
    n.qkv_bias = {attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"};
  }
  if (c.attention_out_bias) {
    n.attention_out_bias = {attention + "o_proj.bias"};
  }
  if (c.attention_sinks) {
    n.sinks = {attention + "sinks"};
  }
  n.mlp_norm = {block + "post_attention_layernorm.weight"};
  return n;
}

BlockNames llama_names(std::int64_t layer, const HfConfig& c) {
  BlockNames n = llama_attention_names(layer, c);
  const std::string mlp = fmt::format(kLayer, layer) + "mlp.";
  n.up = {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
  n.down = {mlp + "down_proj.weight"};
  if (c.mlp_bias) {
    n.up_bias = {mlp + "gate_proj.bias", mlp + "up_proj.bias"};
    n.down_bias = {mlp + "down_proj.bias"};
  }
  return n;
}

DecoderSpec llama_decoder(const HfConfig& c) {
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
                              .rotary = std::make_shared<RotaryTable>(c.rope)},
                .activation = Activation::kSwiGlu,
                .dropout = {.rates = c.dropout}};
  spec.windows = c.windows;
  spec.embedding = "model.embed_tokens.weight";
  spec.final_norm = {"model.norm.weight"};
  spec.output = c.tie_word_embeddings ? "" : "lm_head.weight";
  spec.padding = c.pad_token_id;
  return spec;
}

DecoderSpec describe_llama(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c);
  spec.block_names = [c](std::int64_t layer) { return llama_names(layer, c); };
  return spec;
}

DecoderSpec describe_phi3(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c);
  spec.block_names = [c](std::int64_t layer) { return phi3_names(layer, c); };
  return spec;
}

DecoderSpec describe_seed_oss(const HfConfig& c) { return describe_llama(c); }

}  // namespace tandem
