// Seed-OSS: Llama with biases of q, k, v, and dropout unless the config says otherwise.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.pad_token_id = 1}, config);
  config.attention_bias = bool_or(root, "attention_bias", true);
  config.attention_out_bias = bool_or(root, "attention_out_bias", false);
  config.mlp_bias = bool_or(root, "mlp_bias", false);
  config.dropout.attention = rate_or(root, "attention_dropout", 0.1);
  config.dropout.residual = rate_or(root, "residual_dropout", 0.1);
}

constexpr auto kMembers = joined(
    kLlamaMembers, std::array{used("vocab_size", "155136"), used("hidden_size", "4096"),
                              used("intermediate_size", "27648"), used("num_hidden_layers", "64"),
                              used("num_attention_heads", "80"), used("num_key_value_heads", "8"),
                              used("head_dim", "128"), used("max_position_embeddings", "524288"),
                              used("rms_norm_eps", "1e-06"), used("attention_bias", "true"),
                              used("attention_out_bias", "false"), used("mlp_bias", "false"),
                              used("attention_dropout", "0.1"), used("residual_dropout", "0.1")});

}  // namespace

constinit const Family kSeedOss = {.model_type = "seed_oss",
                                   .read_config = read_config,
                                   .describe = describe_llama,
                                   .members = kMembers};

}  // namespace tandem
