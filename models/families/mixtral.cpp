// Mixtral: Mistral's attention, and experts in every layer, whose matrices are apart.
#include <fmt/format.h>

#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.norm_eps = 1e-5, .kv_heads = 8, .rope = {.theta = 1e6}}, config);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), window_width(root, 0));
  read_experts(root, config);
  config.norm_topk_prob = true;
  if (const auto noise = root.find("router_jitter_noise"); noise && noise->number() != 0) {
    throw noise->wrong("0 (noise before the router is not supported)");
  }
}

BlockNames names(std::int64_t layer, const HfConfig& c) {
  BlockNames n = llama_attention_names(layer, c);
  const std::string mlp = layer_name(layer, "block_sparse_moe.");
  n.router = {mlp + "gate.weight"};
  for (std::int64_t expert = 0; expert < c.experts; ++expert) {
    for (const std::string_view matrix : {"w1", "w3", "w2"}) {  // gate, up, down
      n.experts.push_back(fmt::format("{}experts.{}.{}.weight", mlp, expert, matrix));
    }
  }
  return n;
}

DecoderSpec describe(const HfConfig& c) { return llama_decoder(c, names); }

constexpr std::array kLeaves = {LeafName{"MixtralDecoderLayer", LeafModule::kBlock},
                                LeafName{"MixtralSparseMoeBlock", LeafModule::kMixture},
                                LeafName{"MixtralExperts", LeafModule::kMixture},
                                LeafName{"MixtralBlockSparseTop2MLP", LeafModule::kExpert}};

}  // namespace

constinit const Family kMixtral = {
    .model_type = "mixtral", .read_config = read_config, .describe = describe, .leaves = kLeaves};

}  // namespace tandem
