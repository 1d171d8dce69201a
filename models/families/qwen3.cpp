// Qwen3 (dense): Llama with norms of q and k, and windows in its late layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {}, config);
  read_attention_bias(root, false, config);
  read_late_windows(root, config);
}

LayerNames names(std::int64_t layer, const HfConfig& c) {
  return with_mlp(qwen3_attention_names(layer, c), layer, c);
}

DecoderSpec describe(const HfConfig& c) { return llama_decoder(c, names); }

constexpr auto kMembers = joined(
    kLlamaMembers, std::array{used("vocab_size", "151936"), used("hidden_size", "4096"),
                              used("intermediate_size", "22016"), used("num_hidden_layers", "32"),
                              used("num_attention_heads", "32"), used("num_key_value_heads", "32"),
                              used("head_dim", "128"), used("max_position_embeddings", "32768"),
                              used("rms_norm_eps", "1e-06"), used("attention_bias", "false"),
                              used("use_sliding_window", "false"), used("sliding_window", "4096"),
                              used("max_window_layers", "28"), used("layer_types")});

}  // namespace

constinit const Family kQwen3 = {
    .model_type = "qwen3", .read_config = read_config, .describe = describe, .members = kMembers};

}  // namespace tandem
