// Qwen2 and Qwen2.5: Llama with biases of q, k, v, and windows in its late layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {}, config);
  config.attention_bias = true;
  read_late_windows(root, config);
}

constexpr auto kMembers =
    joined(kLlamaMembers,
           std::array{used("vocab_size", "151936"), used("hidden_size", "4096"),
                      used("intermediate_size", "22016"), used("num_hidden_layers", "32"),
                      used("num_attention_heads", "32"), used("num_key_value_heads", "32"),
                      used("max_position_embeddings", "32768"), used("rms_norm_eps", "1e-06"),
                      used("use_sliding_window", "false"), used("sliding_window", "4096"),
                      used("max_window_layers", "28"), used("layer_types")});

}  // namespace

constinit const Family kQwen2 = {.model_type = "qwen2",
                                 .read_config = read_config,
                                 .describe = describe_llama,
                                 .members = kMembers};

}  // namespace tandem
