#include "actors/storage/json.hpp"

#include <cmath>
#include <unordered_set>

#include "actors/storage/file.hpp"
#include "actors/storage/known_content.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

// simdjson calls integers beyond 64 bits an error although JSON allows them, and published files
// have them (model_max_length = 1e30 written out). Such literals get an exponent, which makes them
// doubles.
constexpr std::size_t kLongestInt64 = 19;

/// simdjson's words for a fault; of numbers that Python alone writes, their own.
std::string parse_fault(std::string_view text, simdjson::error_code code) {
  for (const std::string_view word : {"NaN", "Infinity"}) {
    for (std::size_t at = text.find(word); at != std::string_view::npos;
         at = text.find(word, at + 1)) {
      const std::size_t before = text.substr(0, at).find_last_not_of(" \t\r\n-");
      if (before != std::string_view::npos &&
          std::string_view(":,[").find(text[before]) != std::string_view::npos) {
        return fmt::format("{} is no JSON, null is", word);
      }
    }
  }
  return simdjson::error_message(code);
}

std::string with_long_integers_as_doubles(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    out.push_back(c);
    if (in_string) {
      if (c == '\\' && i + 1 < text.size()) {
        out.push_back(text[++i]);
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c >= '0' && c <= '9') {
      const std::size_t end = std::min(text.find_first_not_of("0123456789", i), text.size());
      out.append(text.substr(i + 1, end - i - 1));
      const char next = end < text.size() ? text[end] : ' ';
      const bool fraction = i > 0 && (text[i - 1] == '.' || text[i - 1] == 'e' ||
                                      text[i - 1] == 'E' || text[i - 1] == '+');
      const bool real = next == '.' || next == 'e' || next == 'E' || fraction;
      if (end - i >= kLongestInt64 && !real) {
        out.append("e0");
      }
      i = end - 1;
    }
  }
  return out;
}

std::string shorten(std::string_view text) {
  constexpr std::size_t kMost = 60;
  if (text.size() <= kMost) {
    return std::string(text);
  }
  std::size_t cut = kMost;
  while (cut > 0 && continues_character(text[cut])) {
    --cut;
  }
  return fmt::format("{}...", text.substr(0, cut));
}

/// The path of a place, without its middle where it lies very deep: a path is made for every child,
/// and a file may nest a thousand deep.
std::string shorten_path(const std::string& path) {
  constexpr std::size_t kMost = 1000;
  if (path.size() <= kMost) {
    return path;
  }
  std::size_t cut = path.size() - kMost / 2;
  while (continues_character(path[cut])) {
    ++cut;
  }
  return shorten(path) + path.substr(cut);
}

/// A child's place takes fifty times the bytes of the shortest child.
void require_count(const JsonValue& value, std::size_t count) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (count > kMost) {
    throw value.error(fmt::format("has {} parts, at most {}", count, kMost));
  }
}

/// A child on the way to a place.
struct Step {
  simdjson::dom::element child;
  std::optional<std::string_view> key;  // none: an item of an array
  std::size_t index = 0;
};

/// The first key that an object has twice. `way` to that object: from the inside outwards, so that
/// paths are made for an error alone.
std::optional<std::string_view> doubled_key(simdjson::dom::element value, std::vector<Step>& way) {
  const auto inside = [&](Step step) {
    const bool has_children = step.child.is_object() || step.child.is_array();
    const auto key = has_children ? doubled_key(step.child, way) : std::nullopt;
    if (key) {
      way.push_back(step);
    }
    return key;
  };
  if (value.is_array()) {
    std::size_t index = 0;
    const simdjson::dom::array items = value.get_array().value_unsafe();
    for (const simdjson::dom::element item : items) {
      if (const auto key = inside({item, std::nullopt, index++})) {
        return key;
      }
    }
    return std::nullopt;
  }
  std::unordered_set<std::string_view> seen;
  const simdjson::dom::object object = value.get_object().value_unsafe();
  seen.reserve(object.size());
  for (const auto& [key, member] : object) {
    if (!seen.insert(key).second) {
      return key;
    }
    if (const auto found = inside({member, key})) {
      return found;
    }
  }
  return std::nullopt;
}

void refuse_duplicate_keys(const JsonValue& root) {
  std::vector<Step> way;
  const bool has_children = root.is_object() || root.is_array();
  const auto key = has_children ? doubled_key(root.raw(), way) : std::nullopt;
  if (!key) {
    return;
  }
  JsonValue place = root;
  for (auto step = way.rbegin(); step != way.rend(); ++step) {
    place =
        step->key ? place.child(step->child, *step->key) : place.child(step->child, step->index);
  }
  throw place.error(fmt::format("the key {} occurs twice", shorten(json_quote(*key))));
}

}  // namespace

std::string_view JsonValue::string() const {
  std::string_view out;
  if (element_.get(out) != simdjson::SUCCESS) {
    throw wrong("a string");
  }
  return out;
}

bool JsonValue::boolean() const {
  bool out = false;
  if (element_.get(out) != simdjson::SUCCESS) {
    throw wrong("true or false");
  }
  return out;
}

double JsonValue::number() const {
  double out = 0;
  if (element_.get(out) != simdjson::SUCCESS || !std::isfinite(out)) {
    throw wrong("a number");
  }
  return out;
}

std::int64_t JsonValue::integer(std::int64_t at_least, std::int64_t at_most) const {
  std::int64_t out = 0;
  if (element_.get(out) != simdjson::SUCCESS) {
    double real = 0;
    constexpr double kExactLimit = 9007199254740992.0;  // 2^53: beyond it doubles skip integers
    if (element_.get(real) != simdjson::SUCCESS || std::nearbyint(real) != real ||
        std::fabs(real) > kExactLimit) {
      throw wrong("an integer");
    }
    out = static_cast<std::int64_t>(real);
  }
  if (out < at_least || out > at_most) {
    throw wrong(at_most == std::numeric_limits<std::int64_t>::max()
                    ? fmt::format("an integer of at least {}", at_least)
                    : fmt::format("an integer from {} to {}", at_least, at_most));
  }
  return out;
}

simdjson::dom::object JsonValue::object() const {
  simdjson::dom::object out;
  if (element_.get(out) != simdjson::SUCCESS) {
    throw wrong("an object");
  }
  return out;
}

simdjson::dom::array JsonValue::array() const {
  simdjson::dom::array out;
  if (element_.get(out) != simdjson::SUCCESS) {
    throw wrong("an array");
  }
  return out;
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  simdjson::dom::element member;
  if (object().at_key(key).get(member) != simdjson::SUCCESS || member.is_null()) {
    return std::nullopt;
  }
  return child(member, key);
}

JsonValue JsonValue::at(std::string_view key) const {
  simdjson::dom::element member;
  if (object().at_key(key).get(member) != simdjson::SUCCESS) {
    throw error(fmt::format("the member \"{}\" is missing", key));
  }
  return child(member, key);
}

std::vector<JsonValue> JsonValue::items() const {
  require_count(*this, array().size());
  std::vector<JsonValue> out;
  for (const simdjson::dom::element item : array()) {
    out.push_back(child(item, out.size()));
  }
  return out;
}

std::vector<std::pair<std::string_view, JsonValue>> JsonValue::members() const {
  require_count(*this, object().size());
  std::vector<std::pair<std::string_view, JsonValue>> out;
  for (const auto& [key, member] : object()) {
    out.emplace_back(key, child(member, key));
  }
  return out;
}

JsonValue JsonValue::child(simdjson::dom::element element, std::string_view key) const {
  return {element, origin_, fmt::format("{}.{}", shorten_path(path_), shorten(key))};
}

JsonValue JsonValue::child(simdjson::dom::element element, std::size_t index) const {
  return {element, origin_, fmt::format("{}[{}]", shorten_path(path_), index)};
}

std::string JsonValue::text() const { return shorten(simdjson::minify(element_)); }

Error JsonValue::error(std::string_view complaint) const {
  return user_error(origin_->where, "{}: {}: {}; {}", origin_->file, path_, complaint,
                    origin_->advice);
}

Error JsonValue::wrong(std::string_view needed) const {
  return user_error(origin_->where, "{}: {} is {}, {} is needed; {}", origin_->file, path_, text(),
                    needed, origin_->advice);
}

JsonDocument JsonDocument::load(const std::filesystem::path& path, JsonOrigin origin,
                                std::uint64_t limit_bytes) {
  const std::string text = read_file(path, origin.where, limit_bytes);
  origin.file = path.string();
  return parse(text, std::move(origin));
}

simdjson::error_code JsonDocument::read(std::string_view text, JsonOrigin origin) {
  origin_ = std::make_unique<JsonOrigin>(std::move(origin));
  parser_ = std::make_unique<simdjson::dom::parser>();
  const simdjson::error_code code = parser_->parse(text.data(), text.size()).get(root_);
  if (code == simdjson::SUCCESS) {
    return code;
  }
  // Versions of simdjson differ in the error that they give to such an integer.
  const std::string retry = with_long_integers_as_doubles(text);
  return retry.size() == text.size() ? code : parser_->parse(retry.data(), retry.size()).get(root_);
}

std::optional<JsonDocument> JsonDocument::parse_if_json(std::string_view text, JsonOrigin origin) {
  JsonDocument document;
  if (document.read(without_mark(text), std::move(origin)) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  refuse_duplicate_keys(document.root());
  return document;
}

JsonDocument JsonDocument::parse(std::string_view text, JsonOrigin origin) {
  text = without_mark(text);
  JsonDocument document;
  if (const simdjson::error_code code = document.read(text, std::move(origin));
      code != simdjson::SUCCESS) {
    if (const std::string_view is = known_content(text.substr(0, kTellingBytes)); !is.empty()) {
      throw user_error(document.origin_->where, "{} {}", document.origin_->file, is);
    }
    throw user_error(document.origin_->where, "{} is not valid JSON ({}); {}",
                     document.origin_->file, text.empty() ? "it is empty" : parse_fault(text, code),
                     document.origin_->advice);
  }
  refuse_duplicate_keys(document.root());
  return document;
}

bool bool_or(const JsonValue& from, std::string_view key, bool otherwise) {
  const auto value = from.find(key);
  return value ? value->boolean() : otherwise;
}

std::string json_quote(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::size_t json_line_of_item(std::string_view text, std::size_t index) {
  std::size_t line = 1;
  std::size_t depth = 0;
  std::size_t item = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (depth == 1 && !in_string && item == index && !blank && c != ',' && c != ']') {
      return line;
    }
    line += c == '\n' ? 1 : 0;
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 1) {
      ++item;
    }
  }
  return 0;
}

}  // namespace tandem
