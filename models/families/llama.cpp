// Llama 3.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {}, config);
  read_attention_bias(root, false, config);
  config.mlp_bias = bool_or(root, "mlp_bias", false);
}

}  // namespace

constinit const Family kLlama = {
    .model_type = "llama", .read_config = read_config, .describe = describe_llama};

}  // namespace tandem
