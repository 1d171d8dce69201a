// Mistral: Llama with grouped heads, and a window in all layers or (Ministral) in those that
// layer_types names.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {}, config);
  const std::int64_t width = window_width(root);
  if (!read_layer_types(root, width, config)) {
    config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), width);
  }
}

constexpr auto kMembers =
    joined(kLlamaMembers,
           std::array{used("vocab_size", "32000"), used("hidden_size", "4096"),
                      used("intermediate_size", "14336"), used("num_hidden_layers", "32"),
                      used("num_attention_heads", "32"), used("num_key_value_heads", "8"),
                      used("max_position_embeddings", "131072"), used("rms_norm_eps", "1e-06"),
                      used("sliding_window", "4096"), used("layer_types")});

}  // namespace

constinit const Family kMistral = {.model_type = "mistral",
                                   .read_config = read_config,
                                   .describe = describe_llama,
                                   .members = kMembers};

}  // namespace tandem
