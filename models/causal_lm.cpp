#include "models/causal_lm.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include <fmt/ranges.h>

#include "models/families/families.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

struct Family {
  std::string_view architecture;
  std::string_view model_type;
  DecoderSpec (*describe)(const HfConfig&);
};

constexpr std::array kFamilies = {
    Family{"GPT2LMHeadModel", "gpt2", describe_gpt2},
    Family{"LlamaForCausalLM", "llama", describe_llama},
    Family{"Phi3ForCausalLM", "phi3", describe_phi3},
    Family{"Qwen3ForCausalLM", "qwen3", describe_qwen3},
    Family{"SeedOssForCausalLM", "seed_oss", describe_seed_oss},
    Family{"Qwen3MoeForCausalLM", "qwen3_moe", describe_qwen3_moe},
    Family{"GptOssForCausalLM", "gpt_oss", describe_gpt_oss},
};

struct Leaf {
  std::string_view model_type;
  std::string_view module;
  LeafModule leaf;
};

constexpr std::array kLeaves = {
    Leaf{"qwen3_moe", "Qwen3MoeDecoderLayer", LeafModule::kBlock},
    Leaf{"qwen3_moe", "Qwen3MoeSparseMoeBlock", LeafModule::kMixture},
    Leaf{"qwen3_moe", "Qwen3MoeMLP", LeafModule::kExpert},
    Leaf{"gpt_oss", "GptOssDecoderLayer", LeafModule::kBlock},
    Leaf{"gpt_oss", "GptOssMLP", LeafModule::kMixture},
    Leaf{"gpt_oss", "GptOssExperts", LeafModule::kMixture},
};

LeafModule leaf_of(const HfConfig& config, std::string_view module) {
  std::vector<std::string_view> known;
  for (const Leaf& leaf : kLeaves) {
    if (leaf.model_type == config.model_type) {
      if (leaf.module == module) {
        return leaf.leaf;
      }
      known.push_back(leaf.module);
    }
  }
  if (known.empty()) {
    throw user_error("model", "leaf module \"{}\": a {} model has no experts; leave it out", module,
                     config.model_type);
  }
  throw user_error("model", "leaf module \"{}\" is none of a {} model; use {}", module,
                   config.model_type, fmt::join(known, ", "));
}

const Family* family_of(const HfConfig& config) {
  const auto* family =
      std::ranges::find(kFamilies, std::string_view(config.model_type), &Family::model_type);
  return family == kFamilies.end() ? nullptr : family;
}

}  // namespace

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    names.emplace_back(family.architecture);
  }
  return names;
}

Model make_causal_lm(const HfConfig& config, std::string_view leaf_module, std::uint64_t seed) {
  const Family* family = family_of(config);
  TANDEM_CHECK(family != nullptr, "a config is read only of a family that is known");
  DecoderSpec spec = family->describe(config);
  spec.block.dropout.seed = seed;
  if (!leaf_module.empty()) {
    spec.leaf = leaf_of(config, leaf_module);
  }
  return make_decoder(spec);
}

}  // namespace tandem
