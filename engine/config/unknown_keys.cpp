#include "engine/config/unknown_keys.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/nearest.hpp"
#include "runtime/util/split.hpp"

namespace tandem {
namespace {

/// Whether DeepSpeed asks this block for the names it knows and looks at no other. Its other blocks
/// are models that refuse one.
bool passes_others_over(std::string_view prefix) {
  constexpr std::array<std::string_view, 12> kOpen = {"",
                                                      "optimizer.",
                                                      "scheduler.",
                                                      "activation_checkpointing.",
                                                      "aio.",
                                                      "checkpoint.",
                                                      "checkpoint.parallel_write.",
                                                      "checkpoint.writer.",
                                                      "data_types.",
                                                      "elasticity.",
                                                      "flops_profiler.",
                                                      "timers."};
  return std::ranges::find(kOpen, prefix) != kOpen.end();
}

/// Where a row or one of its blocks has this name, else "". With `live`, of rows alone whose values
/// change something.
std::string place_of(std::string_view key, std::span<const KeyRow> rows, bool live) {
  for (const KeyRow& row : rows) {
    if (live && row.status == KeyStatus::kNotApplicable) {
      continue;
    }
    std::size_t length = 0;
    for (const std::string_view part : split(std::string_view(row.path), '.')) {
      length += part.size();
      if (part == key) {
        return row.path.substr(0, length);
      }
      ++length;  // the dot
    }
  }
  return "";
}

/// The names that may stand in the block.
std::vector<std::string_view> names_in(std::string_view prefix, std::span<const KeyRow> rows) {
  std::vector<std::string_view> names;
  const auto add = [&](std::string_view path) {
    if (path.starts_with(prefix)) {
      const std::string_view rest = path.substr(prefix.size());
      names.push_back(rest.substr(0, rest.find('.')));
    }
  };
  for (const KeyRow& row : rows) {
    add(row.path);
  }
  for (const KeyAlias& alias : key_aliases()) {
    add(alias.old_path);
  }
  if (prefix == "optimizer." || prefix == "scheduler.") {
    names.emplace_back("type");
    names.emplace_back("params");
  }
  if (prefix.empty()) {
    names.emplace_back("scheduler");  // which has no rows without a type
  }
  return names;
}

}  // namespace

std::string unknown_key_hint(std::string_view prefix, std::string_view key,
                             std::span<const KeyRow> rows) {
  const bool open = passes_others_over(prefix);
  std::string place = place_of(key, rows, true);
  if (place.empty() && !open) {
    place = place_of(key, rows, false);
  }
  if (!place.empty()) {
    return fmt::format("did you mean \"{}\"?", place);
  }
  const std::vector<std::string_view> names = names_in(prefix, rows);
  return open && likely_name(key, names).empty() ? "" : name_hint(key, names);
}

std::string unknown_keys_note(const Config& config) {
  std::vector<std::string> names;
  for (const KeyReport& key : config.keys) {
    if (key.reason == kUnknownKey) {
      names.push_back(fmt::format("\"{}\"", key.path));
    }
  }
  return names.empty()
             ? ""
             : fmt::format("{}: {}: {}", config.origin, fmt::join(names, ", "), kUnknownKey);
}

}  // namespace tandem
