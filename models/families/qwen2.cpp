// Qwen2 and Qwen2.5: Llama with biases of q, k, v, and windows in its late layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.kv_heads = 32}, config);
  config.attention_bias = true;
  read_late_windows(root, config);
}

}  // namespace

constinit const Family kQwen2 = {
    .model_type = "qwen2", .read_config = read_config, .describe = describe_llama};

}  // namespace tandem
