// runtime/util/json_writer.hpp — writes JSON by appending to one string; no tree in between.
//
// Floats are written in the shortest form that reads back to the same bits (std::to_chars). JSON
// has no NaN and no infinity: they are written as the strings "NaN", "Infinity" and "-Infinity",
// which float() of Python and Number() of JavaScript turn back, so a diverged run stays visible in
// its own metrics. Bytes that are not UTF-8 become U+FFFD.
// Invariant: commas and nesting are the writer's business; a misuse (value without key, wrong end)
// ends the process.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// Appends `text` with quotes and escapes.
void append_json_string(std::string& out, std::string_view text);
/// Appends the shortest decimal that reads back to the same bits; NaN and infinities as strings.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, float value);

class JsonWriter {
 public:
  /// `indent` = 0 writes one line; n > 0 puts every member on its own line, n spaces per level.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag);
  JsonWriter& value(double number);
  JsonWriter& value(float number);
  JsonWriter& value(std::nullptr_t);
  template <std::integral T>
    requires(!std::same_as<T, bool> && !std::same_as<T, char>)
  JsonWriter& value(T number) {
    return raw(std::to_string(number));
  }
  template <class T>
  JsonWriter& value(std::span<const T> items) {
    begin_array();
    for (const T& item : items) {
      value(item);
    }
    return end_array();
  }
  template <class T>
  JsonWriter& value(const std::vector<T>& items) {
    return value(std::span<const T>(items));
  }

  /// Writes key(name).value(v).
  template <class T>
  JsonWriter& field(std::string_view name, const T& v) {
    key(name);
    return value(v);
  }

  /// A value that is JSON already; the caller vouches for it.
  JsonWriter& raw(std::string_view json);

  /// The text so far; complete once every begin has its end.
  [[nodiscard]] const std::string& text() const noexcept { return out_; }
  [[nodiscard]] std::string take();
  /// Empties the text and keeps its memory.
  void clear() noexcept;

 private:
  struct Level {
    char close;
    bool empty = true;
  };
  void before_value();
  void separate();
  void new_line();
  JsonWriter& begin(char open, char close);
  JsonWriter& end(char close);

  std::string out_;
  std::vector<Level> levels_;
  int indent_;
  bool key_written_ = false;
};

}  // namespace tandem
