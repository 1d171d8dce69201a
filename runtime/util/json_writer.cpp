#include "runtime/util/json_writer.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "runtime/util/check.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

void append_escaped_ascii(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  const auto code = static_cast<unsigned char>(c);
  if (code < 0x20 || code == 0x7F) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    out += "\\u00";
    out += kDigits[code >> 4U];
    out += kDigits[code & 0xFU];
  } else {
    out += c;
  }
}

template <class T>
void append_shortest(std::string& out, T value) {
  if (std::isnan(value)) {
    out += "\"NaN\"";
    return;
  }
  if (std::isinf(value)) {
    out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return;
  }
  std::array<char, 32> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  TANDEM_CHECK(result.ec == std::errc(), "the shortest form of a double has at most 24 characters");
  out.append(digits.data(), result.ptr);
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 1) {
      append_escaped_ascii(out, text[i]);
    } else if (length == 0) {
      out += kReplacement;
    } else {
      out += text.substr(i, length);
    }
    i += length == 0 ? 1 : length;
  }
  out += '"';
}

void append_json_number(std::string& out, double value) { append_shortest(out, value); }
void append_json_number(std::string& out, float value) { append_shortest(out, value); }

void JsonWriter::new_line() {
  if (indent_ > 0) {
    out_ += '\n';
    out_.append(levels_.size() * static_cast<std::size_t>(indent_), ' ');
  }
}

void JsonWriter::separate() {
  if (levels_.empty()) {
    return;
  }
  if (!std::exchange(levels_.back().empty, false)) {
    out_ += ',';
    if (indent_ == 0) {
      out_ += ' ';
    }
  }
  new_line();
}

void JsonWriter::before_value() {
  if (std::exchange(key_written_, false)) {
    return;
  }
  TANDEM_CHECK(levels_.empty() || levels_.back().close == ']', "a member of an object needs a key");
  separate();
}

JsonWriter& JsonWriter::begin(char open, char close) {
  before_value();
  out_ += open;
  levels_.push_back({close});
  return *this;
}

JsonWriter& JsonWriter::end(char close) {
  TANDEM_CHECK(!levels_.empty() && levels_.back().close == close && !key_written_,
               "ends match their begins");
  const bool empty = levels_.back().empty;
  levels_.pop_back();
  if (!empty) {
    new_line();
  }
  out_ += close;
  return *this;
}

JsonWriter& JsonWriter::begin_object() { return begin('{', '}'); }
JsonWriter& JsonWriter::end_object() { return end('}'); }
JsonWriter& JsonWriter::begin_array() { return begin('[', ']'); }
JsonWriter& JsonWriter::end_array() { return end(']'); }

JsonWriter& JsonWriter::key(std::string_view name) {
  TANDEM_CHECK(!levels_.empty() && levels_.back().close == '}' && !key_written_,
               "keys belong into objects, one per value");
  separate();
  append_json_string(out_, name);
  out_ += ": ";
  key_written_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  append_json_string(out_, text);
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) { return raw(flag ? "true" : "false"); }
JsonWriter& JsonWriter::value(std::nullptr_t) { return raw("null"); }

JsonWriter& JsonWriter::value(double number) {
  before_value();
  append_json_number(out_, number);
  return *this;
}

JsonWriter& JsonWriter::value(float number) {
  before_value();
  append_json_number(out_, number);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  out_ += json;
  return *this;
}

std::string JsonWriter::take() {
  TANDEM_CHECK(levels_.empty(), "a taken document is complete");
  return std::exchange(out_, {});
}

void JsonWriter::clear() noexcept {
  out_.clear();
  levels_.clear();
  key_written_ = false;
}

}  // namespace tandem
