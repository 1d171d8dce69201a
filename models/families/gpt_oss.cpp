// gpt-oss: sinks, windows in every other layer, scaled positions, and experts that lie in one
// tensor, [experts, in, out], clamped. Checkpoints pack them in four bits; training widens them.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_windows(const JsonValue& root, HfConfig& config) {
  const std::int64_t width = window_width(root);
  if (width == 0) {
    throw root.error("sliding_window is null, this family needs a width");
  }
  if (!read_layer_types(root, width, config)) {
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      config.windows.push_back(layer % 2 == 0 ? width : 0);
    }
  }
}

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_like(root, {.rope = {.theta = 150000.0}}, config);
  read_attention_bias(root, true, config);
  read_windows(root, config);
  read_experts(root, config);
  config.norm_topk_prob = true;  // a softmax over the chosen experts
  if (const auto packed = root.find("quantization_config")) {
    const JsonValue method = packed->at("quant_method");
    if (method.string() != "mxfp4") {
      throw method.wrong("\"mxfp4\" (other quantized checkpoints are not supported)");
    }
    config.packed_experts = true;
  }
}

LayerNames names(std::int64_t layer, const HfConfig& c) {
  LayerNames n = llama_attention_names(layer, c);
  n.sinks = {layer_name(layer, "self_attn.sinks")};
  const std::string mlp = layer_name(layer, "mlp.");
  n.router = {mlp + "router.weight", mlp + "router.bias"};
  n.experts = {mlp + "experts.gate_up_proj", mlp + "experts.gate_up_proj_bias",
               mlp + "experts.down_proj", mlp + "experts.down_proj_bias"};
  return n;
}

DecoderSpec describe(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c, names);
  spec.block.experts.layout = ExpertLayout::kStacked;
  spec.block.experts.activation = Activation::kClampedSwiGlu;
  return spec;
}

constexpr std::array kLeaves = {LeafName{"GptOssDecoderLayer", LeafModule::kBlock},
                                LeafName{"GptOssMLP", LeafModule::kMixture},
                                LeafName{"GptOssExperts", LeafModule::kMixture}};

constexpr std::string_view kPositions =
    R"({"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, )"
    R"("beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096})";

constexpr auto kMembers =
    joined(joined(kLlamaMembers, kExpertMembers),
           std::array{used("vocab_size", "201088"), used("hidden_size", "2880"),
                      used("intermediate_size", "2880"), used("num_hidden_layers", "36"),
                      used("num_attention_heads", "64"), used("num_key_value_heads", "8"),
                      used("head_dim", "64"), used("max_position_embeddings", "131072"),
                      used("rms_norm_eps", "1e-05"), used("attention_bias", "true"),
                      used("sliding_window", "128"), used("layer_types"),
                      used("num_local_experts", "128"), used("num_experts_per_tok", "4"),
                      used("rope_parameters", kPositions), fixed("swiglu_limit", "7.0"),
                      harmless("experts_per_token"), harmless("initial_context_length")});

}  // namespace

constinit const Family kGptOss = {.model_type = "gpt_oss",
                                  .read_config = read_config,
                                  .describe = describe,
                                  .leaves = kLeaves,
                                  .members = kMembers};

}  // namespace tandem
