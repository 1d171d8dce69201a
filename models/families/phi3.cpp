// Phi-3 (Phi-4): joined projections, no biases, a window in all layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.norm_eps = 1e-5, .pad_token_id = 32000, .rope = {.is_phi3 = true}},
                  config);
  refuse(root, "attention_bias", true);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), window_width(root, 0));
  config.dropout.residual = rate_or(root, "resid_pdrop", 0.0);
  (void)rate_or(root, "embd_pdrop", 0.0);  // Transformers reads it and drops nothing by it
}

BlockNames names(std::int64_t layer, const HfConfig& c) {
  BlockNames n = llama_attention_names(layer, c);
  n.qkv = {layer_name(layer, "self_attn.qkv_proj.weight")};
  n.up = {layer_name(layer, "mlp.gate_up_proj.weight")};
  n.down = {layer_name(layer, "mlp.down_proj.weight")};
  return n;
}

DecoderSpec describe(const HfConfig& c) { return llama_decoder(c, names); }

}  // namespace

constinit const Family kPhi3 = {
    .model_type = "phi3", .read_config = read_config, .describe = describe};

}  // namespace tandem
