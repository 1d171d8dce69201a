// Mistral: Llama with grouped heads and a window in all layers.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.kv_heads = 8}, config);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers),
                        window_width(root, 4096));
}

}  // namespace

constinit const Family kMistral = {
    .model_type = "mistral", .read_config = read_config, .describe = describe_llama};

}  // namespace tandem
