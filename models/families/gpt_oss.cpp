// gpt-oss: sinks, windows in every other layer, scaled positions, and experts that lie in one
// tensor, [experts, in, out], clamped. Checkpoints pack them in four bits; training widens them.
#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

void read_windows(const JsonValue& root, HfConfig& config) {
  const std::int64_t width = window_width(root, 128);
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
  read_llama_like(
      root, {.norm_eps = 1e-5, .head_dim = 64, .kv_heads = 8, .rope = {.theta = 150000.0}}, config);
  read_attention_bias(root, true, config);
  read_windows(root, config);
  read_experts(root, config);
  config.norm_topk_prob = true;  // a softmax over the chosen experts
  if (positive_or(root, "swiglu_limit", kGateLimit) != kGateLimit) {
    throw root.at("swiglu_limit").wrong("7 (other limits are not supported)");
  }
  if (const auto packed = root.find("quantization_config")) {
    const JsonValue method = packed->at("quant_method");
    if (method.string() != "mxfp4") {
      throw method.wrong("\"mxfp4\" (other quantized checkpoints are not supported)");
    }
    config.packed_experts = true;
  }
  if (!root.find("rope_scaling") && !root.find("rope_parameters")) {
    throw root.error("rope_scaling is missing, rotary positions of this family are scaled");
  }
}

BlockNames names(std::int64_t layer, const HfConfig& c) {
  BlockNames n = llama_attention_names(layer, c);
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

}  // namespace

constinit const Family kGptOss = {
    .model_type = "gpt_oss", .read_config = read_config, .describe = describe, .leaves = kLeaves};

}  // namespace tandem
