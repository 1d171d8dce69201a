#include "engine/config/config.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <unordered_map>

#include <simdjson.h>

#include "engine/config/batch_triple.hpp"
#include "engine/config/elasticity.hpp"
#include "engine/config/json_text.hpp"
#include "engine/config/key_rules.hpp"
#include "engine/config/key_table.hpp"
#include "engine/config/key_value.hpp"
#include "engine/config/unknown_keys.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using simdjson::dom::element;

constexpr std::size_t kFileBytesMax = 1 << 20;
constexpr std::size_t kUnknownMax = 300;

constexpr std::string_view kZero = "zero_optimization";

struct Given {
  element value;
  std::string written_path;
};

bool is_auto(const element& value) {
  std::string_view text;
  return value.is_null() || (value.get(text) == simdjson::SUCCESS && text == "auto");
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view origin, const ParseOptions& options)
      : origin_(origin), options_(options), stripped_(strip_comments(text)) {
    for (JsonMember& member : scan_json(stripped_, origin)) {
      lines_.emplace(std::move(member.path), member.line);
    }
    const auto error = parser_.parse(stripped_).get(root_);
    if (error != simdjson::SUCCESS) {
      throw user_error("config", "{}: not valid JSON: {}", origin, simdjson::error_message(error));
    }
    if (!root_.is_object()) {
      throw user_error("config", "{}: the document is {}; a configuration is an object in braces",
                       origin, kind_of(root_));
    }
  }

  Config parse() {
    config_.origin = origin_;
    config_.world_size = options_.world_size;
    choose_types();
    rows_ = key_table(config_);
    collect(root_, "");
    require_some_known();
    check_old_blocks();
    for (KeyRow& row : rows_) {
      take(row);
    }
    resolve();
    return std::move(config_);
  }

 private:
  [[nodiscard]] std::string where(const std::string& written_path) const {
    const auto found = lines_.find(written_path);
    return found == lines_.end() ? origin_ : fmt::format("{}:{}", origin_, found->second);
  }

  /// The types of optimizer and scheduler decide which parameters exist, so they come first.
  void choose_types() {
    const auto type_of = [&](const char* block, auto&& choose) {
      element member;
      if (root_[block].get(member) != simdjson::SUCCESS || is_auto(member)) {
        return;
      }
      if (!member.is_object()) {
        throw user_error("config", "{}: {} is {}; write an object with type and params",
                         where(block), block, kind_of(member));
      }
      std::string_view type;
      if (member["type"].get(type) != simdjson::SUCCESS) {
        throw user_error("config", "{}: {}.type is missing or no string; name one", where(block),
                         block);
      }
      choose(type, where(fmt::format("{}.type", block)));
    };
    type_of("optimizer", [&](std::string_view type, const std::string& at) {
      choose_optimizer(config_, type, at);
    });
    type_of("scheduler", [&](std::string_view type, const std::string& at) {
      choose_schedule(config_, type, at);
    });
  }

  void collect(const element& object, const std::string& prefix) {
    for (const auto member : simdjson::dom::object(object)) {
      const std::string path = prefix + std::string(member.key);
      if (path == "optimizer.type" || path == "scheduler.type") {
        report_type(path, member.value);
        continue;
      }
      const std::string row_path = canonical(path);
      bool on = false;
      if (is_row(row_path)) {
        give(row_path, path, member.value);
      } else if (path == kZero && member.value.get(on) == simdjson::SUCCESS) {
        give("zero_optimization.stage", path, member.value);
      } else if (const LeftKey* left = left_key(path)) {
        leave(path, member.value, left->reason);
      } else if (is_block(path)) {
        if (member.value.is_object()) {
          collect(member.value, path + ".");
        } else if (!is_auto(member.value)) {
          throw user_error("config", "{}: {} is {}; write an object in braces", where(path), path,
                           kind_of(member.value));
        }
      } else {
        unknown(prefix, std::string(member.key), member.value);
      }
    }
  }

  void report_type(const std::string& path, const element& value) {
    config_.keys.push_back({.path = path, .value = simdjson::minify(value), .reason = {}});
  }

  static std::string canonical(const std::string& path) {
    const auto aliases = key_aliases();
    const auto found = std::ranges::find(aliases, path, &KeyAlias::old_path);
    return found == aliases.end() ? path : std::string(found->path);
  }

  [[nodiscard]] bool is_row(const std::string& path) const {
    return std::ranges::find(rows_, path, &KeyRow::path) != rows_.end();
  }

  [[nodiscard]] bool is_block(const std::string& path) const {
    const std::string prefix = path + ".";
    return path == "scheduler" || path == "scheduler.params" ||
           std::ranges::any_of(rows_,
                               [&](const KeyRow& r) { return r.path.starts_with(prefix); }) ||
           std::ranges::any_of(key_aliases(),
                               [&](const KeyAlias& a) { return a.old_path.starts_with(prefix); });
  }

  /// "cpu_offload" stands for a whole block, so that the block beside it says the same twice.
  void check_old_blocks() const {
    for (const auto& [row_path, given] : given_) {
      if (given.written_path != "zero_optimization.cpu_offload" &&
          !given.written_path.starts_with("zero_optimization.cpu_offload_param")) {
        continue;
      }
      const std::string block = row_path.substr(0, row_path.rfind('.'));
      for (const auto& [other, other_given] : given_) {
        if (other_given.written_path.starts_with(block + ".")) {
          throw user_error("config", "{}: \"{}\" and \"{}\" are two names of one key; remove one",
                           where(given.written_path), given.written_path, block);
        }
      }
    }
  }

  void give(const std::string& row_path, const std::string& path, const element& value) {
    const auto [other, fresh] = given_.emplace(row_path, Given{value, path});
    if (!fresh) {
      throw user_error("config", "{}: \"{}\" and \"{}\" are two names of one key; remove one",
                       where(path), path, other->second.written_path);
    }
  }

  void unknown(const std::string& prefix, const std::string& key, const element& value) {
    const std::string hint = unknown_key_hint(prefix, key, rows_);
    if (!hint.empty()) {
      throw user_error("config", "{}: unknown key \"{}{}\"; {}", where(prefix + key), prefix, key,
                       hint);
    }
    leave(prefix + key, value, kUnknownKey);
    if (++unknown_ > kUnknownMax) {
      require_some_known();
    }
  }

  /// Another JSON file, of a model or a tokenizer, is none of DeepSpeed's.
  void require_some_known() const {
    const bool none = given_.empty() && !config_.optimizer.given &&
                      config_.schedule.type == ScheduleType::kConstant;
    if (unknown_ > kUnknownMax || (unknown_ > 0 && none)) {
      throw user_error("config",
                       "{}: {} of its names are none of DeepSpeed's, as \"{}\"; give a DeepSpeed "
                       "JSON",
                       origin_, unknown_ > kUnknownMax ? "hundreds" : "all",
                       config_.keys.back().path);
    }
  }

  void leave(const std::string& path, const element& value, std::string_view reason) {
    config_.keys.push_back({.path = path,
                            .value = simdjson::minify(value),
                            .status = KeyStatus::kNotApplicable,
                            .reason = std::string(reason)});
  }

  void take(KeyRow& row) {
    const std::string default_json = json_of(row);
    const KeyOverride* flag = flag_of(row.path);
    const auto found = given_.find(row.path);
    const bool in_file = found != given_.end();
    const bool from_file = in_file && !is_auto(found->second.value);
    const KeyFill* fill = in_file && !from_file && flag == nullptr ? fill_of(row.path) : nullptr;
    if (!in_file && flag == nullptr) {
      require(!row.required, row, "");
      return;
    }
    std::string at;
    if (from_file) {
      at = where(found->second.written_path);
      assign_given(row, found->second, at);
    }
    if (flag != nullptr) {
      const std::string file_json = json_of(row);
      assign_json(row, flag->json, flag->flag);
      if (from_file && json_of(row) != file_json) {
        throw user_error("config", "{}: {} is {} but {} says {}; drop one of them", at, row.path,
                         file_json, flag->flag, json_of(row));
      }
      at = flag->flag;
    }
    if (fill != nullptr) {
      assign_json(row, fill->json, fill->from);
      at = fill->from;
    }
    require(!row.required || from_file || flag != nullptr || fill != nullptr, row,
            " (\"auto\" has no default here)");
    report(row, default_json, at,
           flag != nullptr ? KeyOrigin::kFlag
           : from_file     ? KeyOrigin::kFile
                           : KeyOrigin::kAuto);
    if (in_file && !from_file) {
      config_.keys.back().from = at;
    }
  }

  void require(bool ok, const KeyRow& row, std::string_view note) const {
    if (!ok) {
      throw user_error("config", "{}: {} is missing{}; {} needs it", origin_, row.path, note,
                       name_of(config_.schedule.type));
    }
  }

  /// Old names with values of their own: "cpu_offload": true is offload_optimizer.device "cpu", and
  /// "zero_optimization": true is stage 1.
  static void assign_given(KeyRow& row, const Given& given, const std::string& at) {
    bool flag = false;
    if (given.written_path == kZero && given.value.get(flag) == simdjson::SUCCESS) {
      *std::get<std::int64_t*>(row.field) = flag ? 1 : 0;
      return;
    }
    if (given.written_path.starts_with("zero_optimization.cpu_offload") &&
        row.path.ends_with(".device") && given.value.get(flag) == simdjson::SUCCESS) {
      *std::get<std::string*>(row.field) = flag ? "cpu" : "none";
      return;
    }
    assign(row, given.value, at);
  }

  void assign_json(KeyRow& row, const std::string& json, const std::string& at) {
    simdjson::dom::parser parser;
    element value;
    TANDEM_CHECK(parser.parse(json).get(value) == simdjson::SUCCESS, "a flag's value is JSON");
    assign(row, value, at);
    if (row.path.starts_with("optimizer.")) {
      config_.optimizer.given = true;
    }
  }

  [[nodiscard]] const KeyOverride* flag_of(const std::string& path) const {
    const auto found = std::ranges::find(options_.overrides, path, &KeyOverride::path);
    return found == options_.overrides.end() ? nullptr : &*found;
  }

  [[nodiscard]] const KeyFill* fill_of(const std::string& path) const {
    const auto found = std::ranges::find(options_.fills, path, &KeyFill::path);
    return found == options_.fills.end() ? nullptr : &*found;
  }

  void report(const KeyRow& row, const std::string& default_json, const std::string& at,
              KeyOrigin origin) {
    KeyReport entry{row.path, json_of(row), origin, row.status, row.reason};
    if (row.status == KeyStatus::kRefused) {
      if (is_set(row, entry.value, default_json)) {
        throw user_error("config", "{}: {} is refused: {}", at, row.path, row.reason);
      }
      entry.status = KeyStatus::kNotApplicable;
      entry.reason = "off, as always here";
    }
    config_.keys.push_back(std::move(entry));
  }

  /// Whether a refused key asks for what we don't do.
  static bool is_set(const KeyRow& row, const std::string& json, const std::string& default_json) {
    const auto* raw = std::get_if<RawKey>(&row.field);
    if (json == default_json) {
      return false;
    }
    if (raw == nullptr || raw->kind != RawKey::Kind::kBlock) {
      return true;
    }
    simdjson::dom::parser parser;
    element block;
    TANDEM_CHECK(parser.parse(json).get(block) == simdjson::SUCCESS, "a block's text is JSON");
    return json != "{}" && is_on(block) != Switch::kOff;
  }

  /// A block is off where "enabled" says so, and where that of every block within it does.
  enum class Switch : std::uint8_t { kNone, kOff, kOn };
  static Switch is_on(const element& block) {
    element enabled;
    if (block["enabled"].get(enabled) == simdjson::SUCCESS) {
      bool on = false;
      if (is_auto(enabled) || (enabled.get(on) == simdjson::SUCCESS && !on)) {
        return Switch::kOff;
      }
      return Switch::kOn;
    }
    Switch state = Switch::kNone;
    for (const auto member : simdjson::dom::object(block)) {
      if (member.value.is_object()) {
        state = std::max(state, is_on(member.value));
      }
    }
    return state;
  }

  /// max_grad_norm was an optimizer's parameter before there was gradient_clipping.
  void take_old_clipping() {
    const auto old = given_.find("optimizer.params.max_grad_norm");
    const bool clipped = std::ranges::find(config_.keys, "gradient_clipping", &KeyReport::path) !=
                         config_.keys.end();
    double limit = 0;
    if (old != given_.end() && !clipped && old->second.value.get(limit) == simdjson::SUCCESS) {
      config_.gradient_clipping = limit;
    }
  }

  void resolve() {
    if (config_.world_size % config_.sequence_parallel_size != 0) {
      throw user_error("config",
                       "{}: sequence_parallel_size is {}, and {} rank{} cannot be cut into groups "
                       "of that size; use a divisor of the world size",
                       origin_, config_.sequence_parallel_size, config_.world_size,
                       config_.world_size == 1 ? "" : "s");
    }
    take_old_clipping();
    apply_elasticity(config_, rows_);
    solve_batch(config_.batch, {.origin = origin_,
                                .world_size = config_.data_ranks(),
                                .sharers = config_.sequence_parallel_size,
                                .required = options_.batch_required});
    config_.zero.overlap_comm = config_.zero.overlap_comm.value_or(config_.zero.stage == 3);
    if (config_.optimizer.kind == OptimizerKind::kMuon && !config_.optimizer.adam_lr &&
        std::ranges::find(config_.keys, "optimizer.params.lr", &KeyReport::path) ==
            config_.keys.end()) {
      config_.optimizer.adam_lr = 3e-4;  // as DeepSpeed's
    }
    check_contradictions(config_, rows_);
    static_cast<void>(LrSchedule(config_.schedule, config_.optimizer.rate()));
    mark_without_effect(config_, rows_);
    for (KeyReport& entry : config_.keys) {
      const auto row = std::ranges::find(rows_, entry.path, &KeyRow::path);
      if (row != rows_.end()) {
        entry.value = json_of(*row);
      }
    }
  }

  std::string origin_;
  const ParseOptions& options_;
  std::string stripped_;
  std::unordered_map<std::string, std::size_t> lines_;
  simdjson::dom::parser parser_;
  element root_;
  Config config_;
  std::vector<KeyRow> rows_;
  std::map<std::string, Given> given_;
  std::size_t unknown_ = 0;  // names that were passed over
};

}  // namespace

Precision Config::precision() const noexcept {
  if (fp16.enabled) {
    return Precision::kF16;
  }
  return bf16.enabled ? Precision::kBF16 : Precision::kF32;
}

Config parse_config(std::string_view text, std::string_view origin, const ParseOptions& options) {
  if (options.world_size < 1) {
    throw user_error("config", "{}: read for {} ranks; give 1 at least", origin,
                     options.world_size);
  }
  return Parser(text, origin, options).parse();
}

Config load_config(const std::string& path, const ParseOptions& options) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  if (!file || !file.read(text.data(), static_cast<std::streamsize>(text.size())).eof()) {
    const bool too_long = file && file.gcount() > static_cast<std::streamsize>(kFileBytesMax);
    throw user_error("config", "{}: cannot be read: {}; give a DeepSpeed JSON file", path,
                     too_long ? "longer than 1 MiB" : std::strerror(errno));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return parse_config(text, path, options);
}

}  // namespace tandem
