// models/families/experts.cpp — mixtures of experts: Qwen3-MoE (each expert's matrices apart) and gpt-oss (all in one).
#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {
namespace {

/// A router, and each expert's gated MLP; where a layer is dense, one MLP.
std::vector<ParameterSpec> qwen3_mlp(std::int64_t layer, const HfConfig& c) {
  const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
  std::vector<ParameterSpec> parameters;
  const auto gated = [&](const std::string& prefix, std::int64_t width) {
    parameters.push_back({prefix + "gate_proj.weight", {width, c.hidden_size}});
    parameters.push_back({prefix + "up_proj.weight", {width, c.hidden_size}});
    parameters.push_back({prefix + "down_proj.weight", {c.hidden_size, width}});
  };
  if (!c.sparse(layer)) {
    gated(mlp, c.intermediate_size);
    return parameters;
  }
  parameters.push_back({mlp + "gate.weight", {c.experts, c.hidden_size}});
  for (std::int64_t expert = 0; expert < c.experts; ++expert) {
    gated(fmt::format("{}experts.{}.", mlp, expert), c.expert_size);
  }
  return parameters;
}

/// The experts' matrices are [experts, in, out]; the checkpoint packs them in 4 bits, training widens them.
std::vector<ParameterSpec> gpt_oss_more(std::int64_t layer, const HfConfig& c) {
  const std::string block = fmt::format("model.layers.{}.", layer);
  const std::string experts = block + "mlp.experts.";
  const std::int64_t up = 2 * c.expert_size;
  return {{block + "mlp.router.weight", {c.experts, c.hidden_size}},
          {block + "mlp.router.bias", {c.experts}},
          {experts + "gate_up_proj", {c.experts, c.hidden_size, up}},
          {experts + "gate_up_proj_bias", {c.experts, up}},
          {experts + "down_proj", {c.experts, c.expert_size, c.hidden_size}},
          {experts + "down_proj_bias", {c.experts, c.hidden_size}}};
}

DecoderSpec decoder_with_experts(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c);
  spec.block.intermediate = c.expert_size;
  spec.block.experts = c.experts;
  spec.block.experts_per_token = c.experts_per_token;
  return spec;
}

}  // namespace

DecoderSpec describe_qwen3_moe(const HfConfig& c) {
  DecoderSpec spec = decoder_with_experts(c);
  spec.block_names = [c](std::int64_t layer) {
    BlockNames n = llama_attention_names(layer, c);
    const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
    n.qk_norm = {attention + "q_norm.weight", attention + "k_norm.weight"};
    return n;
  };
  spec.more_parameters = [c](std::int64_t layer) { return qwen3_mlp(layer, c); };
  return spec;
}

DecoderSpec describe_gpt_oss(const HfConfig& c) {
  DecoderSpec spec = decoder_with_experts(c);
  spec.block_names = [c](std::int64_t layer) { return llama_attention_names(layer, c); };
  spec.more_parameters = [c](std::int64_t layer) { return gpt_oss_more(layer, c); };
  return spec;
}

}  // namespace tandem
