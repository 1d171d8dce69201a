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
  bool built = true;  // false: described, for plans
};

constexpr std::array kFamilies = {
    Family{"GPT2LMHeadModel", "gpt2", describe_gpt2},
    Family{"LlamaForCausalLM", "llama", describe_llama},
    Family{"Phi3ForCausalLM", "phi3", describe_phi3},
    Family{"Qwen3ForCausalLM", "qwen3", describe_qwen3},
    Family{"SeedOssForCausalLM", "seed_oss", describe_seed_oss},
    Family{"Qwen3MoeForCausalLM", "qwen3_moe", describe_qwen3_moe},
    Family{"GptOssForCausalLM", "gpt_oss", describe_gpt_oss, false},
};

const Family* family_of(const HfConfig& config) {
  const auto* family =
      std::ranges::find(kFamilies, std::string_view(config.model_type), &Family::model_type);
  return family == kFamilies.end() ? nullptr : family;
}

}  // namespace

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (family.built) {
      names.emplace_back(family.architecture);
    }
  }
  return names;
}

Model make_causal_lm(const HfConfig& config) {
  const Family* family = family_of(config);
  if (family == nullptr || !family->built) {
    throw user_error("model", "model_type \"{}\" is not built; known architectures: {}",
                     config.model_type, fmt::join(known_architectures(), ", "));
  }
  return make_decoder(family->describe(config));
}

Model describe_causal_lm(const HfConfig& config) {
  const Family* family = family_of(config);
  TANDEM_CHECK(family != nullptr, "a config is read only of a family that is described");
  Model model = make_decoder(family->describe(config));
  if (!family->built) {
    for (SegmentSpec& segment : model.segments) {
      segment.run = nullptr;  // its layers differ from what the shapes alone say
    }
  }
  return model;
}

}  // namespace tandem
