#include "models/adapter_targets.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace tandem {
namespace {

constexpr std::string_view kWhere = "adapter";
constexpr std::string_view kAll = "all-linear";  // PEFT chooses by the base's modules
constexpr std::int64_t kMostLayerIndex = std::int64_t{1} << 20;

/// The one text, or all texts of a list.
std::vector<std::string> texts_at(const JsonValue& root, std::string_view key) {
  std::vector<std::string> texts;
  const auto value = root.find(key);
  if (value && value->is_array()) {
    for (const JsonValue& item : value->items()) {
      texts.emplace_back(item.string());
    }
  } else if (value && !value->string().empty()) {
    texts.emplace_back(value->string());
  }
  return texts;
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && rest == text.data() + text.size() && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

}  // namespace

AdapterTargets::Names AdapterTargets::names_at(const JsonValue& root, std::string_view key) {
  Names names;
  const auto value = root.find(key);
  if (value && value->raw().is_string()) {
    if (value->string() != kAll && !value->string().empty()) {
      names.pattern.emplace(fmt::format(R"((?:{})\z)", value->string()),
                            NamePattern::Options{.where = kWhere, .what = key, .at_begin = true});
    }
  } else {
    names.ends = texts_at(root, key);
  }
  return names;
}

bool AdapterTargets::Names::has(std::string_view module) const {
  return pattern ? pattern->is_in(module) : std::ranges::any_of(ends, [&](const std::string& end) {
    return module == end || module.ends_with("." + end);
  });
}

AdapterTargets::AdapterTargets(const JsonValue& root)
    : targets_(names_at(root, "target_modules")),
      excluded_(names_at(root, "exclude_modules")),
      layer_lists_(texts_at(root, "layers_pattern")) {
  const auto targets = root.find("target_modules");
  all_linear_ = targets && targets->raw().is_string() && targets->string() == kAll;
  const auto layers = root.find("layers_to_transform");
  if (layers && layers->is_array()) {
    for (const JsonValue& layer : layers->items()) {
      layers_.push_back(layer.integer(0, kMostLayerIndex));
    }
  } else if (layers) {
    layers_.push_back(layers->integer(0, kMostLayerIndex));
  }
}

/// The first number behind the name of a list of layers, or behind any two names.
std::optional<std::int64_t> AdapterTargets::layer_of(std::string_view module) const {
  std::vector<std::string_view> parts;
  while (!module.empty()) {
    const std::size_t end = std::min(module.find('.'), module.size());
    parts.push_back(module.substr(0, end));
    module.remove_prefix(std::min(end + 1, module.size()));
  }
  for (std::size_t i = 1; i + 1 < parts.size(); ++i) {
    const auto number = number_of(parts[i]);
    const bool counts = layer_lists_.empty()
                            ? i >= 2
                            : std::ranges::find(layer_lists_, parts[i - 1]) != layer_lists_.end();
    if (number && counts) {
      return number;
    }
  }
  return std::nullopt;
}

std::string_view AdapterTargets::left_out_by(std::string_view module) const {
  if (excluded_.is_given() && excluded_.has(module)) {
    return "exclude_modules";
  }
  if (targets_.is_given() && !targets_.has(module)) {
    return "target_modules";
  }
  if (!layers_.empty() && !targets_.ends.empty()) {
    const auto layer = layer_of(module);
    if (!layer || std::ranges::find(layers_, *layer) == layers_.end()) {
      return "layers_to_transform";
    }
  }
  return {};
}

}  // namespace tandem
