// Qwen3 (dense): Llama with norms of q and k, and windows in its late layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.head_dim = 128, .kv_heads = 32}, config);
  read_attention_bias(root, false, config);
  read_late_windows(root, config);
}

BlockNames names(std::int64_t layer, const HfConfig& c) {
  return with_mlp(qwen3_attention_names(layer, c), layer, c);
}

DecoderSpec describe(const HfConfig& c) { return llama_decoder(c, names); }

}  // namespace

constinit const Family kQwen3 = {
    .model_type = "qwen3", .read_config = read_config, .describe = describe};

}  // namespace tandem
