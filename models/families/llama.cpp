// Llama 3.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {}, config);
  read_attention_bias(root, false, config);
  config.mlp_bias = bool_or(root, "mlp_bias", false);
}

constexpr auto kMembers =
    joined(kLlamaMembers,
           std::array{used("vocab_size", "32000"), used("hidden_size", "4096"),
                      used("intermediate_size", "11008"), used("num_hidden_layers", "32"),
                      used("num_attention_heads", "32"), used("max_position_embeddings", "2048"),
                      used("rms_norm_eps", "1e-06"), used("attention_bias", "false"),
                      used("mlp_bias", "false")});

}  // namespace

constinit const Family kLlama = {.model_type = "llama",
                                 .read_config = read_config,
                                 .describe = describe_llama,
                                 .members = kMembers};

}  // namespace tandem
