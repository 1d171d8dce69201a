// Mixtral: Mistral's attention, and experts in every layer, whose matrices are apart.
#include <fmt/format.h>

#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.rope = {.theta = 1e6}}, config);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), window_width(root));
  read_experts(root, config);
  config.norm_topk_prob = true;
}

LayerNames names(std::int64_t layer, const HfConfig& c) {
  LayerNames n = llama_attention_names(layer, c);
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

constexpr auto kMembers =
    joined(joined(kLlamaMembers, kExpertMembers),
           std::array{used("vocab_size", "32000"), used("hidden_size", "4096"),
                      used("intermediate_size", "14336"), used("num_hidden_layers", "32"),
                      used("num_attention_heads", "32"), used("num_key_value_heads", "8"),
                      used("max_position_embeddings", "131072"), used("rms_norm_eps", "1e-05"),
                      used("sliding_window", "null"), used("num_local_experts", "8"),
                      used("num_experts_per_tok", "2"), fixed("router_jitter_noise", "0.0")});

constexpr std::array kSpellings = {OtherSpelling{".block_sparse_moe.", ".mlp."}};

}  // namespace

constinit const Family kMixtral = {.model_type = "mixtral",
                                   .read_config = read_config,
                                   .describe = describe,
                                   .leaves = kLeaves,
                                   .spellings = kSpellings,
                                   .members = kMembers};

}  // namespace tandem
