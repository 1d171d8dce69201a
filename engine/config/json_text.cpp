#include "engine/config/json_text.hpp"

#include <algorithm>
#include <unordered_map>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr int kDepthMax = 64;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// One past the closing quote of the string that starts at `i`, or the end of the text.
std::size_t skip_string(std::string_view text, std::size_t i) {
  for (++i; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

/// The end of the comment that starts at `i`, or `i` when none does.
std::size_t comment_end(std::string_view text, std::size_t i) {
  if (text[i] == '#' || text.substr(i, 2) == "//") {
    return std::min(text.find('\n', i), text.size());
  }
  if (text.substr(i, 2) == "/*") {
    const std::size_t end = text.find("*/", i + 2);
    return end == std::string_view::npos ? i : end + 2;
  }
  return i;
}

class Scanner {
 public:
  Scanner(std::string_view text, std::string_view origin) : text_(text), origin_(origin) {}

  std::vector<JsonMember> scan() {
    value("", 0);
    skip_space();
    if (i_ < text_.size()) {
      fail(i_, "the document ends before this; remove what follows the closing brace");
    }
    return std::move(members_);
  }

 private:
  [[noreturn]] void fail(std::size_t offset, std::string_view what) const {
    const std::size_t at = std::min(offset, text_.size());
    const std::size_t line_start = at == 0 ? std::string_view::npos : text_.rfind('\n', at - 1);
    const std::size_t column = line_start == std::string_view::npos ? at + 1 : at - line_start;
    throw user_error("config", "{}:{}:{}: not valid JSON: {}", origin_, line_of(text_, at), column,
                     what);
  }

  /// Line of an offset that never goes back, so that the whole scan counts each newline once.
  std::size_t line_at(std::size_t offset) {
    line_ += line_of(text_.substr(counted_, offset - counted_), offset - counted_) - 1;
    counted_ = offset;
    return line_;
  }

  void skip_space() {
    while (i_ < text_.size() && is_space(text_[i_])) {
      ++i_;
    }
  }

  [[nodiscard]] char peek() const { return i_ < text_.size() ? text_[i_] : '\0'; }

  std::string_view string() {
    const std::size_t start = i_;
    i_ = skip_string(text_, i_);
    if (i_ - start < 2 || text_[i_ - 1] != '"') {
      fail(start, "this string has no closing quote");
    }
    const std::string_view body = text_.substr(start + 1, i_ - start - 2);
    if (body.find('\n') != std::string_view::npos) {
      fail(start, "this string has no closing quote on its line");
    }
    return body;
  }

  void value(const std::string& path, int depth) {
    skip_space();
    if (depth > kDepthMax) {
      fail(i_, "nested deeper than 64 levels");
    }
    switch (peek()) {
      case '{':
        return object(path, depth);
      case '[':
        return array(path, depth);
      case '"':
        string();
        return;
      case '\0':
        fail(i_, "the text ends where a value is expected");
      default:
        return word();
    }
  }

  void word() {
    const std::size_t start = i_;
    while (i_ < text_.size() && !is_space(text_[i_]) &&
           std::string_view(",:{}[]\"").find(text_[i_]) == std::string_view::npos) {
      ++i_;
    }
    const std::string_view text = text_.substr(start, i_ - start);
    if (text.empty()) {
      fail(start, fmt::format("a value is expected, not '{}'", peek()));
    }
    const bool number = text[0] == '-' || (text[0] >= '0' && text[0] <= '9');
    if (!number && text != "true" && text != "false" && text != "null") {
      fail(start, fmt::format("\"{}\" is no value; write true, false, null, a number or a string "
                              "in double quotes",
                              text));
    }
  }

  void object(const std::string& path, int depth) {
    std::unordered_map<std::string_view, std::size_t> seen;
    ++i_;
    for (skip_space(); peek() != '}'; skip_space()) {
      if (!seen.empty()) {
        if (peek() != ',') {
          fail(i_, "',' or '}' is expected");
        }
        ++i_;
        skip_space();
      }
      const std::size_t start = i_;
      if (peek() != '"') {
        fail(start, "a key in double quotes is expected");
      }
      const std::string_view key = string();
      const std::size_t line = line_at(start);
      std::string member = path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
      if (const auto [other, fresh] = seen.emplace(key, line); !fresh) {
        throw user_error("config",
                         "{}:{}: key \"{}\" is given twice (first in line {}); remove one", origin_,
                         line, member, other->second);
      }
      skip_space();
      if (peek() != ':') {
        fail(i_, fmt::format("':' is expected after key \"{}\"", key));
      }
      ++i_;
      members_.push_back({member, line});
      value(member, depth + 1);
    }
    ++i_;
  }

  void array(const std::string& path, int depth) {
    ++i_;
    std::size_t index = 0;
    for (skip_space(); peek() != ']'; skip_space()) {
      if (index > 0) {
        if (peek() != ',') {
          fail(i_, "',' or ']' is expected");
        }
        ++i_;
      }
      value(fmt::format("{}[{}]", path, index), depth + 1);
      ++index;
    }
    ++i_;
  }

  std::string_view text_;
  std::string_view origin_;
  std::size_t i_ = 0;
  std::size_t line_ = 1;
  std::size_t counted_ = 0;  // newlines before this are in line_
  std::vector<JsonMember> members_;
};

}  // namespace

std::string strip_comments(std::string_view text) {
  std::string out(text);
  const auto blank = [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      if (out[k] != '\n') {
        out[k] = ' ';
      }
    }
  };
  std::size_t i = 0;
  if (text.starts_with(kByteOrderMark)) {
    blank(0, kByteOrderMark.size());
    i = kByteOrderMark.size();
  }
  std::size_t comma = std::string::npos;  // a comma with only spaces and comments since
  while (i < text.size()) {
    const char c = text[i];
    if (const std::size_t end = comment_end(text, i); end != i) {
      blank(i, end);
      i = end;
      continue;
    }
    if (c == '"') {
      i = skip_string(text, i);
      comma = std::string::npos;
      continue;
    }
    if ((c == '}' || c == ']') && comma != std::string::npos) {
      out[comma] = ' ';
    }
    if (c == ',') {
      comma = i;
    } else if (!is_space(c)) {
      comma = std::string::npos;
    }
    ++i;
  }
  return out;
}

std::size_t line_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  return 1 + static_cast<std::size_t>(std::ranges::count(before, '\n'));
}

std::vector<JsonMember> scan_json(std::string_view stripped, std::string_view origin) {
  return Scanner(stripped, origin).scan();
}

}  // namespace tandem
