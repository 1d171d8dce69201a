// models/adapter_modules.cpp — assigns the tensors of an adapter file to modules, and checks them
// against the configuration.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/json.hpp"
#include "models/adapter_folder.hpp"
#include "models/causal_lm.hpp"
#include "models/families/family.hpp"
#include "models/io/adapter_keys.hpp"
#include "models/transformer/adapters.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "adapter";
constexpr double kMostOfPattern = 1 << 20;

}  // namespace

/// PEFT's rule for patterns: the first that matches an end of the module's name.
double AdapterFolder::by_pattern(const std::vector<Pattern>& patterns, const std::string& module,
                                 double otherwise) {
  for (const Pattern& pattern : patterns) {
    if (pattern.names.is_in(module)) {
      return pattern.value;
    }
  }
  return otherwise;
}

void AdapterFolder::read_pattern(const JsonValue& root, std::string_view key,
                                 std::vector<Pattern>& out) {
  if (const auto patterns = root.find(key)) {
    for (const auto& [pattern, value] : patterns->members()) {
      const double number = value.number();
      if (!(number > 0 && number <= kMostOfPattern)) {
        throw value.wrong(fmt::format("a number above 0, at most {}", kMostOfPattern));
      }
      out.push_back({NamePattern(fmt::format(R"((?:.*\.)?(?:{})$)", pattern),
                                 {.where = kWhere, .what = key, .at_begin = true}),
                     number});
    }
  }
}

/// Notes what a tensor is to which module or parameter.
void AdapterFolder::place(const TensorInfo& tensor) {
  std::string parameter = tensor.name.substr(kAdapterPrefix.size());
  if (const std::size_t at = parameter.rfind(kDefaultName);
      at != std::string::npos && parameter.rfind(".lora_", at) != std::string::npos) {
    parameter.erase(at, kDefaultName.size());
  }
  using Part = const TensorInfo* AdapterModule::*;
  constexpr std::array<std::pair<std::string_view, Part>, 7> kParts = {{
      {kAdapterA, &AdapterModule::a},
      {kAdapterB, &AdapterModule::b},
      {".lora_embedding_A", &AdapterModule::a},
      {".lora_embedding_B", &AdapterModule::b},
      {".lora_B.bias", &AdapterModule::bias},
      {".lora_magnitude_vector", &AdapterModule::magnitude},
      {".lora_magnitude_vector.weight", &AdapterModule::magnitude},
  }};
  for (const auto& [ending, part] : kParts) {
    if (!parameter.ends_with(ending)) {
      continue;
    }
    const std::string name = parameter.substr(0, parameter.size() - ending.size());
    AdapterModule& module = modules_[name];
    module.on_embedding = module.on_embedding || ending.starts_with(".lora_embedding");
    module.*part = &tensor;
    return;
  }
  constexpr std::string_view kBase = ".base_layer.";
  std::string whole = parameter;
  if (const std::size_t at = whole.rfind(kBase); at != std::string::npos) {
    whole.replace(at, kBase.size(), ".");
  }
  if (!whole_.emplace(whole, &tensor).second) {
    throw user_error(kWhere, "{} has \"{}\" twice; save the adapter again",
                     weights_.path().string(), whole);
  }
}

void AdapterFolder::refuse_left_out(std::string_view module, std::string_view field) const {
  throw user_error(kWhere,
                   "{} has LoRA of {}, which {} in its configuration leaves out, so that PEFT "
                   "would not use it; correct {} or save the adapter again",
                   weights_.path().string(), module, field, field);
}

/// Refuses tensors that the configuration denies, which PEFT passes over, and those that it
/// promises and the file lacks: for magnitudes PEFT takes those of the base, for biases zero or, by
/// init_lora_weights, random values.
void AdapterFolder::require_as_config(const std::string& name, const AdapterModule& module) const {
  if (const std::string_view field = targets_.left_out_by(name); !field.empty()) {
    refuse_left_out(name, field);
  }
  const bool has_magnitude = module.magnitude != nullptr;
  if (has_magnitude != uses_dora_) {
    throw user_error(
        kWhere, "{} has {} of {}, and its configuration says use_dora {}; save the adapter again",
        weights_.path().string(),
        has_magnitude ? "lora_magnitude_vector" : "no lora_magnitude_vector", name, uses_dora_);
  }
  if ((module.bias != nullptr) != has_lora_bias_) {
    throw user_error(
        kWhere,
        "{} has {} of lora_B for {}, and its configuration says lora_bias {}; save the "
        "adapter again",
        weights_.path().string(), module.bias != nullptr ? "a bias" : "no bias", name,
        has_lora_bias_);
  }
}

std::string AdapterFolder::absent_targets(const HfConfig& base) const {
  const DecoderSpec spec = family_of(base).describe(base);
  std::vector<std::string> ends = {module_of(spec.embedding), "lm_head"};
  if (!spec.positions.empty()) {
    ends.push_back(module_of(spec.positions));
  }
  std::vector<std::string> absent = adaptable_modules(spec);
  if (!targets_.all_linear()) {
    absent.insert(absent.end(), ends.begin(), ends.end());
  } else if (const auto other = std::ranges::find_if(
                 ends, [this](const std::string& end) { return modules_.contains(end); });
             other != ends.end()) {
    refuse_left_out(*other, "target_modules");
  }
  std::erase_if(absent, [this](const std::string& module) {
    return !targets_.left_out_by(module).empty() || modules_.contains(module) ||
           is_trained_whole(module + ".weight");
  });
  if (absent.empty() || !targets_.are_given()) {
    return "";
  }
  const std::string names =
      absent.size() == 1 ? absent.front()
                         : fmt::format("{} and of {} more", absent.front(), absent.size() - 1);
  if (draws_absent_) {
    throw user_error(kWhere,
                     "{} has no LoRA of {}, which target_modules in its configuration names; with "
                     "init_lora_weights false PEFT would give them random values; correct "
                     "target_modules or save the adapter again",
                     weights_.path().string(), names);
  }
  return fmt::format(
      "{} has no LoRA of {}, which target_modules names; as with PEFT, the base "
      "model's weights stand there",
      weights_.path().string(), names);
}

/// Ranks and scales of the modules, and what of them is not trained here.
void AdapterFolder::complete_modules() {
  for (auto& [name, module] : modules_) {
    if (module.a == nullptr || module.b == nullptr) {
      throw user_error(kWhere, "{} has no {} of {}; save the adapter again",
                       weights_.path().string(), module.a == nullptr ? "lora_A" : "lora_B", name);
    }
    require_as_config(name, module);
    module.rank =
        static_cast<std::int64_t>(by_pattern(ranks_, name, static_cast<double>(lora_.rank)));
    const auto rank = static_cast<double>(module.rank);
    module.scale =
        by_pattern(alphas_, name, lora_.alpha) / (lora_.rank_stabilised ? std::sqrt(rank) : rank);
    if (beyond_training_.empty() && module.on_embedding) {
      beyond_training_ = "LoRA on an embedding";
    }
  }
  for (const auto& [parameter, tensor] : whole_) {
    if (beyond_training_.empty() && tensor->name.substr(kAdapterPrefix.size()) != parameter) {
      beyond_training_ = fmt::format("the copy {}", tensor->name.substr(kAdapterPrefix.size()));
    }
  }
}

}  // namespace tandem
