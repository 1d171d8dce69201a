// models/families/gpt2.cpp — GPT-2: LayerNorm, learnt positions, biases everywhere, tanh GELU,
// matrices as [in, out].
#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {
namespace {

std::vector<std::string> weight_and_bias(const std::string& name) {
  return {name + ".weight", name + ".bias"};
}

BlockNames names(std::int64_t layer) {
  const std::string block = fmt::format("transformer.h.{}.", layer);
  BlockNames n;
  n.attention_norm = weight_and_bias(block + "ln_1");
  n.qkv = {block + "attn.c_attn.weight"};
  n.qkv_bias = {block + "attn.c_attn.bias"};
  n.attention_out = {block + "attn.c_proj.weight"};
  n.attention_out_bias = {block + "attn.c_proj.bias"};
  n.mlp_norm = weight_and_bias(block + "ln_2");
  n.up = {block + "mlp.c_fc.weight"};
  n.up_bias = {block + "mlp.c_fc.bias"};
  n.down = {block + "mlp.c_proj.weight"};
  n.down_bias = {block + "mlp.c_proj.bias"};
  return n;
}

}  // namespace

DecoderSpec describe_gpt2(const HfConfig& c) {
  DecoderSpec spec;
  spec.vocabulary = c.vocab_size;
  spec.layers = c.num_hidden_layers;
  spec.block = {.hidden = c.hidden_size,
                .intermediate = c.intermediate_size,
                .norm = NormKind::kLayer,
                .norm_eps = c.norm_eps,
                .attention = {.heads = c.num_attention_heads,
                              .kv_heads = c.num_attention_heads,
                              .head_dim = c.head_dim},
                .activation = Activation::kGeluTanh,
                .input_major = true,
                .dropout = {.rates = c.dropout}};
  spec.block_names = names;
  spec.embedding = "transformer.wte.weight";
  spec.positions = "transformer.wpe.weight";
  spec.max_positions = c.max_position_embeddings;
  spec.final_norm = weight_and_bias("transformer.ln_f");
  spec.output = c.tie_word_embeddings ? "" : "lm_head.weight";
  // GPT-2's input embedding is built without padding_idx: every row learns.
  return spec;
}

}  // namespace tandem
