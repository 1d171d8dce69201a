#include "models/trained_parts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/name_pattern.hpp"
#include "models/transformer/adapters.hpp"
#include "models/transformer/decoder.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"

namespace tandem {

namespace {

constexpr std::string_view kWhere = "trained parts";
constexpr std::int64_t kMostRank = 1 << 16;
constexpr std::size_t kFewTargets = 20;  // peft: MIN_TARGET_MODULES_FOR_OPTIMIZATION

std::string_view last_part(std::string_view module) { return module.substr(module.rfind('.') + 1); }

/// PEFT's rule for target_modules.
bool means(std::string_view target, std::string_view module) {
  return module == target || (module.ends_with(target) && module.size() > target.size() &&
                              module[module.size() - target.size() - 1] == '.');
}

std::vector<std::string> parameters_of(const DecoderSpec& spec) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : make_decoder(spec).units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      names.push_back(parameter.name);
    }
  }
  return names;
}

std::vector<std::string> last_parts(std::span<const std::string> modules) {
  std::set<std::string> parts;
  for (const std::string& module : modules) {
    parts.emplace(last_part(module));
  }
  return {parts.begin(), parts.end()};
}

std::set<std::string> whole_parameters(const LoraOptions& lora, const DecoderSpec& spec,
                                       const std::vector<std::string>& parameters,
                                       std::string_view model_type) {
  std::set<std::string> whole;
  for (const std::string& module : lora.modules_to_save) {
    const std::size_t before = whole.size();
    for (const std::string& parameter : parameters) {
      const std::string_view owner = std::string_view(parameter).substr(0, parameter.rfind('.'));
      if (owner.ends_with(module)) {
        whole.insert(parameter);
      }
    }
    if (whole.size() == before && spec.output.empty() && module == "lm_head") {
      throw user_error(kWhere,
                       "lm_head of this {} model is its embedding (tied), which cannot be saved by "
                       "that name; use {}",
                       model_type, last_part(module_of(spec.embedding)));
    }
    if (whole.size() == before) {
      std::vector<std::string> modules;
      modules.reserve(parameters.size());
      for (const std::string& parameter : parameters) {
        modules.push_back(parameter.substr(0, parameter.rfind('.')));
      }
      const std::vector<std::string> known = last_parts(modules);
      const std::vector<std::string_view> views(known.begin(), known.end());
      throw user_error(kWhere, "no other module of this {} model to save is called \"{}\"; {}",
                       model_type, module, name_hint(module, views));
    }
  }
  return whole;
}

}  // namespace

double LoraOptions::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilised ? std::sqrt(r) : r);
}

void LoraOptions::check() const {
  if (rank < 1 || rank > kMostRank) {
    throw user_error(kWhere, "r, the rank of adapters, is {}; it is 1 to {}", rank, kMostRank);
  }
  if (!(alpha > 0) || !std::isfinite(alpha)) {
    throw user_error(kWhere, "lora_alpha, the alpha of adapters, is {}; it must be above 0", alpha);
  }
  if (!(dropout >= 0 && dropout < 1)) {
    throw user_error(kWhere,
                     "lora_dropout, the dropout of adapters, is {}; it is a rate from 0 to "
                     "below 1",
                     dropout);
  }
  if (targets.empty()) {
    throw user_error(kWhere, "adapters have no targets; name modules, or {}", kAllLinear);
  }
  if (targets.size() > 1 && std::ranges::find(targets, kAllLinear) != targets.end()) {
    throw user_error(kWhere, "{} are all targets that there are; leave the others out", kAllLinear);
  }
}

std::vector<std::string> adaptable_modules(const DecoderSpec& spec) {
  std::vector<std::string> modules;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const LayerNames names = spec.layer_names(layer);
    for (std::size_t linear = 0; linear < kAdaptedLinears; ++linear) {
      for (const std::string& weight : names.matrices(static_cast<AdaptedLinear>(linear))) {
        modules.push_back(module_of(weight));
      }
    }
  }
  return modules;
}

std::vector<std::string> adapted_modules(const DecoderSpec& spec, const LoraOptions& lora) {
  std::vector<std::string> adaptable = adaptable_modules(spec);
  if (lora.targets == std::vector{std::string(kAllLinear)}) {
    return adaptable;
  }
  for (const std::string& target : lora.targets) {
    if (std::ranges::none_of(adaptable, [&](auto& module) { return means(target, module); })) {
      const std::vector<std::string> known = last_parts(adaptable);
      const std::vector<std::string_view> views(known.begin(), known.end());
      throw user_error(kWhere,
                       "no module that can have adapters is called \"{}\" in this model; {} There "
                       "are {}, and {} for all of them",
                       target, name_hint(target, views), fmt::join(known, ", "), kAllLinear);
    }
  }
  std::vector<std::string> adapted;
  std::ranges::copy_if(adaptable, std::back_inserter(adapted), [&](const std::string& module) {
    return std::ranges::any_of(lora.targets,
                               [&](const std::string& target) { return means(target, module); });
  });
  return adapted;
}

void TrainedParts::apply(DecoderSpec& spec, std::string_view model_type) const {
  if (!lora.any() && freeze.empty()) {
    return;
  }
  const std::vector<std::string> parameters = parameters_of(spec);
  if (lora.any()) {
    if (!freeze.empty()) {
      throw user_error(kWhere,
                       "adapters freeze all else already, and \"{}\" is to be frozen, too; leave "
                       "that out, or name what learns whole in modules_to_save",
                       freeze);
    }
    lora.check();
    const std::vector<std::string> modules = adapted_modules(spec, lora);
    const auto adapted =
        std::make_shared<const std::set<std::string>>(modules.begin(), modules.end());
    const auto whole = std::make_shared<const std::set<std::string>>(
        whole_parameters(lora, spec, parameters, model_type));
    for (const std::string& module : *adapted) {
      if (whole->contains(module + ".weight")) {
        throw user_error(kWhere, "{} would have adapters and be saved whole; do one of them",
                         module);
      }
    }
    spec.block.adapters = {.rank = lora.rank, .scale = lora.scale(), .dropout = lora.dropout};
    spec.adapts = [adapted](const std::string& module) { return adapted->contains(module); };
    spec.freezes = [whole](const std::string& parameter) { return !whole->contains(parameter); };
    return;
  }
  const NamePattern pattern(freeze, {.where = kWhere, .what = "the pattern of what is frozen"});
  const auto frozen = std::make_shared<std::set<std::string>>();
  for (const std::string& parameter : parameters) {
    if (pattern.is_in(parameter)) {
      frozen->insert(parameter);
    }
  }
  if (frozen->empty() || frozen->size() == parameters.size()) {
    throw user_error(
        kWhere,
        "\"{}\" freezes {} of the {} parameters of this {} model ({} ...); change "
        "the pattern",
        freeze, frozen->empty() ? "none" : "all", parameters.size(), model_type,
        fmt::join(std::span(parameters).first(std::min<std::size_t>(3, parameters.size())), ", "));
  }
  spec.freezes = [frozen](const std::string& parameter) { return frozen->contains(parameter); };
}

std::vector<std::string> saved_targets(const DecoderSpec& spec, const LoraOptions& lora) {
  std::vector<std::string> targets = lora.targets;
  if (targets == std::vector{std::string(kAllLinear)}) {
    targets = adaptable_modules(spec);
  }
  if (targets.size() >= kFewTargets) {
    LoraOptions shorter = lora;
    shorter.targets = last_parts(targets);
    if (adapted_modules(spec, shorter) == adapted_modules(spec, lora)) {
      targets = shorter.targets;
    }
  }
  std::ranges::sort(targets);
  const auto repeated = std::ranges::unique(targets);
  targets.erase(repeated.begin(), repeated.end());
  return targets;
}

}  // namespace tandem
