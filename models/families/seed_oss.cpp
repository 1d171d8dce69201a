// Seed-OSS: Llama with biases of q, k, v, and dropout unless the config says otherwise.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.head_dim = 128, .kv_heads = 8, .pad_token_id = 1}, config);
  config.attention_bias = bool_or(root, "attention_bias", true);
  config.attention_out_bias = bool_or(root, "attention_out_bias", false);
  config.mlp_bias = bool_or(root, "mlp_bias", false);
  config.dropout.attention = rate_or(root, "attention_dropout", 0.1);
  config.dropout.residual = rate_or(root, "residual_dropout", 0.1);
}

}  // namespace

constinit const Family kSeedOss = {
    .model_type = "seed_oss", .read_config = read_config, .describe = describe_llama};

}  // namespace tandem
