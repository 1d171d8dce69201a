// actors/storage/json.hpp — reads JSON files of unknown origin strictly: a thin layer over
// simdjson's DOM.
//
// This file adds three things to the library: a size limit, refusal of duplicate keys, and typed
// getters whose errors name file, JSON path, value and remedy.
// Invariant: a JsonValue is valid while its JsonDocument lives and is not moved from; documents may
// be moved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "runtime/util/error.hpp"

namespace tandem {

/// The parts of an error's line besides the fault: `where` as in "[config]", the file, and the
/// closing advice.
struct JsonOrigin {
  std::string where;
  std::string file;
  std::string advice;
};

class JsonValue {
 public:
  JsonValue(simdjson::dom::element element, const JsonOrigin* origin, std::string path)
      : element_(element), origin_(origin), path_(std::move(path)) {}

  [[nodiscard]] bool is_null() const noexcept { return element_.is_null(); }
  [[nodiscard]] bool is_object() const noexcept { return element_.is_object(); }
  [[nodiscard]] bool is_array() const noexcept { return element_.is_array(); }

  /// Return the typed value. Error if the value has another type or is out of range. An integral
  /// double (4.0) counts as an integer.
  [[nodiscard]] std::string_view string() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] double number() const;
  [[nodiscard]] std::int64_t integer(
      std::int64_t at_least = std::numeric_limits<std::int64_t>::min(),
      std::int64_t at_most = std::numeric_limits<std::int64_t>::max()) const;
  [[nodiscard]] simdjson::dom::object object() const;
  [[nodiscard]] simdjson::dom::array array() const;

  /// Return a member of an object. If it is missing, at() throws Error; if it is missing or null,
  /// find() returns nothing.
  [[nodiscard]] JsonValue at(std::string_view key) const;
  [[nodiscard]] std::optional<JsonValue> find(std::string_view key) const;
  /// Return the children with their paths. Error if there are more than 2^20 of them; code for
  /// longer values iterates over array() or object() and builds paths only for errors.
  [[nodiscard]] std::vector<JsonValue> items() const;
  [[nodiscard]] std::vector<std::pair<std::string_view, JsonValue>> members() const;

  [[nodiscard]] JsonValue child(simdjson::dom::element element, std::string_view key) const;
  [[nodiscard]] JsonValue child(simdjson::dom::element element, std::size_t index) const;

  [[nodiscard]] simdjson::dom::element raw() const noexcept { return element_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Returns the value as JSON, shortened for a message.
  [[nodiscard]] std::string text() const;

  /// Returns the error "[where] file: path: <complaint>; <advice>".
  [[nodiscard]] Error error(std::string_view complaint) const;
  /// The same with the value: "path is <value>, <needed> is needed".
  [[nodiscard]] Error wrong(std::string_view needed) const;

 private:
  simdjson::dom::element element_;
  const JsonOrigin* origin_;
  std::string path_;
};

class JsonDocument {
 public:
  /// Reads and checks a file. Error if it is missing, too large, not JSON (with simdjson's reason),
  /// or has a duplicate key (with its path).
  static JsonDocument load(const std::filesystem::path& path, JsonOrigin origin,
                           std::uint64_t limit_bytes);
  /// The same for text in memory; `origin.file` says where it came from.
  static JsonDocument parse(std::string_view text, JsonOrigin origin);
  /// The same; nullopt if the text is not one JSON value.
  static std::optional<JsonDocument> parse_if_json(std::string_view text, JsonOrigin origin);

  [[nodiscard]] JsonValue root() const { return {root_, origin_.get(), "$"}; }

 private:
  JsonDocument() = default;
  /// Parses the text as root_, without a look at its keys.
  simdjson::error_code read(std::string_view text, JsonOrigin origin);

  std::unique_ptr<JsonOrigin> origin_;
  std::unique_ptr<simdjson::dom::parser> parser_;
  simdjson::dom::element root_;
};

/// Returns the flag `key` of an object; `otherwise` if it is missing or null.
bool bool_or(const JsonValue& from, std::string_view key, bool otherwise);

/// Returns `text` as a JSON string, with its quotes.
std::string json_quote(std::string_view text);

/// Returns the number of the line (from 1) on which item `index` of the document's top-level array
/// begins; 0 if there is no such item. `text` must be valid JSON.
std::size_t json_line_of_item(std::string_view text, std::size_t index);

}  // namespace tandem
