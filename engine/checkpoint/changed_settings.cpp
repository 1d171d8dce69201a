#include "engine/checkpoint/changed_settings.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <simdjson.h>

namespace tandem {
namespace {

using Values = std::map<std::string, std::string>;  // [path] JSON

/// The keys that begin so change what a step computes. check_resume() compares, and refuses, the
/// batch and the mean that the loss is; all other keys change no digit.
constexpr std::array<std::string_view, 7> kCounts = {
    "optimizer.", "scheduler.",         "gradient_clipping",        "decay_norms",
    "fp16.",      "prescale_gradients", "gradient_predivide_factor"};

bool counts(std::string_view path) {
  return path != "fp16.enabled" &&  // check_resume() compares the precision
         std::ranges::any_of(kCounts, [&](std::string_view of) { return path.starts_with(of); });
}

void add_values(const simdjson::dom::element& element, const std::string& path, Values& values) {
  simdjson::dom::object object;
  if (element.get(object) != simdjson::SUCCESS) {
    if (counts(path)) {
      values[path] = simdjson::minify(element);
    }
    return;
  }
  for (const auto& [key, value] : object) {
    add_values(value, path.empty() ? std::string(key) : fmt::format("{}.{}", path, key), values);
  }
}

Values values_of(const std::string& config) {
  Values values;
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (parser.parse(config).get(root) == simdjson::SUCCESS) {
    add_values(root, "", values);
  }
  return values;
}

/// Says whether the run takes the new value: a dynamic loss scale is a state, which the checkpoint
/// has.
std::string_view effect_of(std::string_view path) {
  return path == "fp16.initial_scale_power" ? "the scale goes on from the checkpoint's"
                                            : "the new value is taken";
}

void compare(const Values& before, const Values& after, std::vector<std::string>& lines) {
  constexpr std::string_view kNone = "not there";
  const auto add = [&](const std::string& name, std::string_view old, std::string_view now) {
    lines.push_back(
        fmt::format("{}: {} in the checkpoint, {} now: {}", name, old, now, effect_of(name)));
  };
  for (const auto& [name, value] : after) {
    const auto old = before.find(name);
    if (old == before.end() || old->second != value) {
      add(name, old == before.end() ? kNone : std::string_view(old->second), value);
    }
  }
  for (const auto& [name, value] : before) {
    if (!after.contains(name)) {
      add(name, value, kNone);
    }
  }
}

}  // namespace

std::vector<std::string> changed_settings(const RunState& saved, const RunState& now) {
  std::vector<std::string> lines;
  Values before = values_of(saved.config);
  if (!before.empty()) {
    const Values after = values_of(now.config);
    if (after.contains("decay_norms")) {  // checkpoints of before there was the key had its default
      before.try_emplace("decay_norms", "true");
    }
    compare(before, after, lines);
  }
  if (!saved.settings.empty()) {
    compare(Values(saved.settings.begin(), saved.settings.end()),
            Values(now.settings.begin(), now.settings.end()), lines);
  }
  return lines;
}

}  // namespace tandem
