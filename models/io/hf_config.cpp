#include "models/io/hf_config.hpp"

#include <optional>

#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"

namespace tandem {
namespace {

/// End of the JSON value that begins at `from`, in valid JSON.
std::size_t end_of_value(std::string_view json, std::size_t from) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = from; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == '}' || c == ']' || c == ':')) {
      return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return json.size();
}

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t from = text.find_first_not_of(kBlanks);
  return from == std::string_view::npos
             ? std::string_view{}
             : text.substr(from, text.find_last_not_of(kBlanks) - from + 1);
}

struct Member {
  std::size_t begin, end;  // from behind the last separator to the next one
  std::size_t value, value_end;
};

/// A member of the top-level object of valid JSON.
std::optional<Member> find_member(std::string_view json, std::string_view key) {
  const std::string quoted = json_quote(key);
  for (std::size_t at = json.find('{') + 1; at < json.size() && json[at] != '}';) {
    const std::size_t colon = end_of_value(json, at);
    const std::size_t end = end_of_value(json, colon + 1);
    if (trimmed(json.substr(at, colon - at)) == quoted) {
      const std::string_view old = trimmed(json.substr(colon + 1, end - colon - 1));
      const auto value = static_cast<std::size_t>(old.data() - json.data());
      return Member{at, end, value, value + old.size()};
    }
    at = end < json.size() && json[end] == ',' ? end + 1 : json.size();
  }
  return std::nullopt;
}

}  // namespace

std::string with_json_member(std::string_view json, std::string_view key, std::string_view value) {
  if (const auto member = find_member(json, key)) {
    return fmt::format("{}{}{}", json.substr(0, member->value), value,
                       json.substr(member->value_end));
  }
  const std::size_t open = json.find('{') + 1;
  const bool empty = trimmed(json.substr(open)).starts_with('}');
  return fmt::format("{}\n  {}: {}{}{}", json.substr(0, open), json_quote(key), value,
                     empty ? "\n" : ",", json.substr(open));
}

std::string without_json_member(std::string_view json, std::string_view key) {
  const auto member = find_member(json, key);
  if (!member) {
    return std::string(json);
  }
  std::size_t from = member->begin;
  std::size_t to = member->end;
  if (json[to] == ',') {
    ++to;
  } else if (const std::size_t before = json.find_last_not_of(kBlanks, from - 1);
             json[before] == ',') {
    from = before;  // the last one takes the comma before it along
    to = member->value_end;
  }
  return fmt::format("{}{}", json.substr(0, from), json.substr(to));
}

std::string hf_config_json(const HfConfig& config, std::string_view dtype) {
  const JsonDocument document = JsonDocument::parse(
      config.json, {.where = "model config", .file = "config.json", .advice = "correct it"});
  const std::string value = json_quote(dtype);
  const simdjson::dom::object root = document.root().object();
  const bool has_new = root.at_key("dtype").error() == simdjson::SUCCESS;
  const bool has_old = root.at_key("torch_dtype").error() == simdjson::SUCCESS;
  std::string json = without_json_member(config.json, "quantization_config");
  if (has_new) {
    json = with_json_member(json, "dtype", value);
  }
  if (has_old || !has_new) {
    json = with_json_member(json, "torch_dtype", value);
  }
  return json;
}

void write_hf_config(const HfConfig& config, const std::filesystem::path& folder,
                     std::string_view dtype) {
  write_file(folder / "config.json", "model config", hf_config_json(config, dtype));
}

}  // namespace tandem
