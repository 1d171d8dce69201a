// models/families/experts.cpp — mixtures of experts: Qwen3-MoE (each expert's matrices apart) and
// gpt-oss (all in one).
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {
namespace {

/// A router, and each expert's gated MLP; where a layer is dense, one MLP.
void name_qwen3_mlp(std::int64_t layer, const HfConfig& c, BlockNames& n) {
  const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
  if (!c.sparse(layer)) {
    n.up = {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
    n.down = {mlp + "down_proj.weight"};
    return;
  }
  n.router = {mlp + "gate.weight"};
  for (std::int64_t expert = 0; expert < c.experts; ++expert) {
    for (const std::string_view projection : {"gate_proj", "up_proj", "down_proj"}) {
      n.experts.push_back(fmt::format("{}experts.{}.{}.weight", mlp, expert, projection));
    }
  }
}

/// The experts' matrices are [experts, in, out]; the checkpoint packs them in 4 bits, training
/// widens them.
void name_gpt_oss_mlp(std::int64_t layer, BlockNames& n) {
  const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
  n.router = {mlp + "router.weight", mlp + "router.bias"};
  for (const std::string_view part :
       {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"}) {
    n.experts.push_back(fmt::format("{}experts.{}", mlp, part));
  }
}

DecoderSpec decoder_with_experts(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c);
  spec.block.experts = {.count = c.experts,
                        .per_token = c.experts_per_token,
                        .width = c.expert_size,
                        .normalised = c.norm_topk_prob};
  spec.router_loss = c.router_loss();
  return spec;
}

}  // namespace

DecoderSpec describe_qwen3_moe(const HfConfig& c) {
  DecoderSpec spec = decoder_with_experts(c);
  spec.block_names = [c](std::int64_t layer) {
    BlockNames n = llama_attention_names(layer, c);
    const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
    n.qk_norm = {attention + "q_norm.weight", attention + "k_norm.weight"};
    name_qwen3_mlp(layer, c, n);
    return n;
  };
  return spec;
}

DecoderSpec describe_gpt_oss(const HfConfig& c) {
  DecoderSpec spec = decoder_with_experts(c);
  spec.block.experts.normalised = true;
  spec.block.experts.layout = ExpertLayout::kStacked;
  spec.block.experts.activation = Activation::kClampedSwiGlu;
  spec.block_names = [c](std::int64_t layer) {
    BlockNames n = llama_attention_names(layer, c);
    name_gpt_oss_mlp(layer, n);
    return n;
  };
  return spec;
}

}  // namespace tandem
