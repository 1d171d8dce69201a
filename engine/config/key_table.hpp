// engine/config/key_table.hpp — one row for each known key of DeepSpeed's schema: the field for its
// value, its possible values, and whether it is applied, ignored or refused. The parser, the
// resolved dump and the report all read this table.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/config/config.hpp"

namespace tandem {

/// A key without a field of its own in Config: type-checked, reported, otherwise unused.
struct RawKey {
  enum class Kind : std::uint8_t {
    kBool,
    kInt,
    kNumber,
    kString,
    kList,
    kBlock,  // an object of any content; counts as set unless its "enabled" is false
  };
  Kind kind;
  std::string json;  // the default, then the value given
};

/// Where a row's value lives in the Config that the table was made for.
using KeyField =
    std::variant<RawKey, bool*, std::int64_t*, double*, std::string*, std::optional<bool>*,
                 std::optional<std::int64_t>*, std::optional<double>*, std::array<double, 2>*,
                 std::vector<std::string>*, WarmupShape*>;

struct KeyRow {
  std::string path;
  KeyField field;
  KeyStatus status = KeyStatus::kApplied;  // kRefused: any value but the default is an error
  std::string reason;                      // for kNotApplicable and kRefused
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                 // the minimum itself is excluded
  std::vector<std::string_view> choices;  // of a string; empty: any
  bool required = false;

  KeyRow&& range(double low, double high) &&;
  KeyRow&& at_least(double low) &&;
  KeyRow&& above(double low) &&;
  KeyRow&& one_of(std::vector<std::string_view> names) &&;
  KeyRow&& unused(std::string_view why) &&;   // kNotApplicable
  KeyRow&& refused(std::string_view why) &&;  // kRefused
  KeyRow&& needed() &&;
};

/// Returns all rows, bound to the fields of `config`. Its types of optimizer and scheduler
/// (OptimizerConfig::type, ScheduleConfig::type) decide which of their parameters have rows. Rows
/// of one block are adjacent.
[[nodiscard]] std::vector<KeyRow> key_table(Config& config);

/// Old names, and the row each one stands for.
struct KeyAlias {
  std::string_view old_path;
  std::string_view path;
};
[[nodiscard]] std::span<const KeyAlias> key_aliases();

/// A key that is accepted with any value and ignored. A path that ends in ".*" stands for all keys
/// of its block.
struct LeftKey {
  std::string_view path;
  std::string_view reason;
};
/// Returns the entry of an ignored key: of older versions, of other trainers, or a comment
/// ("_comment"); null for any other key.
[[nodiscard]] const LeftKey* left_key(std::string_view path);

/// Sets Config::optimizer.type. Throws user_error for a type that is unknown or not supported, with
/// the reason.
void choose_optimizer(Config& config, std::string_view type, std::string_view where);
/// Sets Config::schedule.type.
void choose_schedule(Config& config, std::string_view type, std::string_view where);

}  // namespace tandem
