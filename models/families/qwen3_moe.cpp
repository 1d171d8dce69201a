// Qwen3-MoE: Qwen3's attention, and experts whose matrices are apart; some layers may be dense.
#include <algorithm>

#include <fmt/format.h>

#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_dense_layers(const JsonValue& root, HfConfig& config) {
  const std::int64_t every = size_or(root, "decoder_sparse_step", kMostLayers, 1);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if ((layer + 1) % every != 0) {
      config.dense_layers.push_back(layer);
    }
  }
  if (const auto dense = root.find("mlp_only_layers")) {
    for (const JsonValue& layer : dense->items()) {
      config.dense_layers.push_back(layer.integer(0, config.num_hidden_layers - 1));
    }
  }
  std::ranges::sort(config.dense_layers);
  const auto repeated = std::ranges::unique(config.dense_layers);
  config.dense_layers.erase(repeated.begin(), repeated.end());
}

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {}, config);
  read_attention_bias(root, false, config);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers),
                        flagged_window_width(root));
  read_experts(root, config);
  config.expert_size = size_at(root, "moe_intermediate_size", kMostWidth);
  config.norm_topk_prob = bool_or(root, "norm_topk_prob", false);
  read_dense_layers(root, config);
}

LayerNames names(std::int64_t layer, const HfConfig& c) {
  LayerNames n = qwen3_attention_names(layer, c);
  if (!c.sparse(layer)) {
    return with_mlp(std::move(n), layer, c);
  }
  const std::string mlp = layer_name(layer, "mlp.");
  n.router = {mlp + "gate.weight"};
  for (std::int64_t expert = 0; expert < c.experts; ++expert) {
    for (const std::string_view projection : {"gate_proj", "up_proj", "down_proj"}) {
      n.experts.push_back(fmt::format("{}experts.{}.{}.weight", mlp, expert, projection));
    }
  }
  return n;
}

DecoderSpec describe(const HfConfig& c) { return llama_decoder(c, names); }

constexpr std::array kLeaves = {LeafName{"Qwen3MoeDecoderLayer", LeafModule::kBlock},
                                LeafName{"Qwen3MoeSparseMoeBlock", LeafModule::kMixture},
                                LeafName{"Qwen3MoeMLP", LeafModule::kExpert}};

constexpr auto kMembers =
    joined(joined(kLlamaMembers, kExpertMembers),
           std::array{used("vocab_size", "151936"), used("hidden_size", "2048"),
                      used("intermediate_size", "6144"), used("num_hidden_layers", "24"),
                      used("num_attention_heads", "32"), used("num_key_value_heads", "4"),
                      used("max_position_embeddings", "32768"), used("rms_norm_eps", "1e-06"),
                      used("attention_bias", "false"), used("use_sliding_window", "false"),
                      used("sliding_window", "4096"), harmless("max_window_layers"),
                      used("num_local_experts", "128"), used("num_experts_per_tok", "8"),
                      used("moe_intermediate_size", "768"), used("norm_topk_prob", "false"),
                      used("decoder_sparse_step", "1"), used("mlp_only_layers", "[]")});

}  // namespace

constinit const Family kQwen3Moe = {.model_type = "qwen3_moe",
                                    .read_config = read_config,
                                    .describe = describe,
                                    .leaves = kLeaves,
                                    .members = kMembers};

}  // namespace tandem
