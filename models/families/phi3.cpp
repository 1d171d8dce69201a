// Phi-3 (Phi-4): joined projections, no biases, a window in all layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.pad_token_id = 32000, .rope = {.is_phi3 = true}}, config);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), window_width(root));
  config.dropout.residual = rate_or(root, "resid_pdrop", 0.0);
}

LayerNames names(std::int64_t layer, const HfConfig& c) {
  LayerNames n = llama_attention_names(layer, c);
  n.qkv = {layer_name(layer, "self_attn.qkv_proj.weight")};
  n.up = {layer_name(layer, "mlp.gate_up_proj.weight")};
  n.down = {layer_name(layer, "mlp.down_proj.weight")};
  return n;
}

DecoderSpec describe(const HfConfig& c) { return llama_decoder(c, names); }

// embd_pdrop: Transformers reads it and drops nothing by it.
constexpr auto kMembers =
    joined(kLlamaMembers,
           std::array{used("vocab_size", "32064"), used("hidden_size", "3072"),
                      used("intermediate_size", "8192"), used("num_hidden_layers", "32"),
                      used("num_attention_heads", "32"), used("max_position_embeddings", "4096"),
                      used("rms_norm_eps", "1e-05"), used("sliding_window", "null"),
                      used("resid_pdrop", "0.0"), fixed("attention_bias", "false"),
                      harmless("embd_pdrop")});

}  // namespace

constinit const Family kPhi3 = {
    .model_type = "phi3", .read_config = read_config, .describe = describe, .members = kMembers};

}  // namespace tandem
