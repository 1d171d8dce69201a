// The resolved configuration and the per-key report, both read off the key table.
#include <algorithm>
#include <utility>

#include "engine/config/config.hpp"
#include "engine/config/key_table.hpp"
#include "engine/config/key_value.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/split.hpp"

namespace tandem {
namespace {

/// Opens and closes objects so that rows given in block order nest.
class NestedObject {
 public:
  NestedObject() { json_.begin_object(); }

  void field(std::string_view path, std::string_view value_json) {
    const std::vector<std::string_view> parts = split(path, '.');
    const std::size_t blocks = parts.size() - 1;
    std::size_t common = 0;
    while (common < std::min(blocks, open_.size()) && open_[common] == parts[common]) {
      ++common;
    }
    close_to(common);
    for (std::size_t k = common; k < blocks; ++k) {
      json_.key(parts[k]).begin_object();
      open_.emplace_back(parts[k]);
    }
    json_.key(parts.back()).raw(value_json);
  }

  std::string take() {
    close_to(0);
    json_.end_object();
    return json_.take() + "\n";
  }

 private:
  void close_to(std::size_t depth) {
    while (open_.size() > depth) {
      json_.end_object();
      open_.pop_back();
    }
  }

  JsonWriter json_{2};
  std::vector<std::string> open_;
};

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

}  // namespace

std::string resolved_json(const Config& config) {
  Config copy = config;  // the table binds to fields that may be changed
  NestedObject out;
  bool optimizer_named = false;
  bool scheduler_named = false;
  for (const KeyRow& row : key_table(copy)) {
    if (row.path.starts_with("optimizer.") && !std::exchange(optimizer_named, true)) {
      out.field("optimizer.type", json_string(config.optimizer.type));
    }
    if (row.path.starts_with("scheduler.") && !std::exchange(scheduler_named, true)) {
      out.field("scheduler.type", json_string(name_of(config.schedule.type)));
    }
    // A key without a field of its own is worth a line only when the user wrote it.
    const auto given = std::ranges::find(config.keys, row.path, &KeyReport::path);
    if (!std::holds_alternative<RawKey>(row.field)) {
      out.field(row.path, json_of(row));
    } else if (given != config.keys.end()) {
      out.field(row.path, given->value);
    }
  }
  return out.take();
}

std::vector<std::string> report_lines(const Config& config) {
  std::vector<std::string> lines;
  for (const KeyReport& entry : config.keys) {
    std::string line = entry.path + (entry.from.empty() ? ": " : ": auto: ") + entry.value;
    if (!entry.from.empty()) {
      line += ", from " + entry.from;
    } else if (entry.origin == KeyOrigin::kAuto) {
      line += " (auto)";
    }
    line += entry.status == KeyStatus::kApplied ? "  applied" : "  not applicable: " + entry.reason;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tandem
