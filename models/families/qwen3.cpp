// models/families/qwen3.cpp — Qwen3 (dense): Llama's layer with norms of q and k.
#include <memory>

#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {
namespace {

BlockNames names(std::int64_t layer, bool attention_bias) {
  BlockNames n = llama_attention_names(layer, attention_bias, attention_bias);
  const std::string block = fmt::format("model.layers.{}.", layer);
  n.qk_norm = {block + "self_attn.q_norm.weight", block + "self_attn.k_norm.weight"};
  n.up = {block + "mlp.gate_proj.weight", block + "mlp.up_proj.weight"};
  n.down = {block + "mlp.down_proj.weight"};
  return n;
}

}  // namespace

DecoderSpec describe_qwen3(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c);
  spec.block.attention.rotary = std::make_shared<RotaryTable>(c.rope_theta, c.head_dim);
  spec.block_names = [bias = c.attention_bias](std::int64_t layer) { return names(layer, bias); };
  return spec;
}

}  // namespace tandem
