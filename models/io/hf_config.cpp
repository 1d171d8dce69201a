#include "models/io/hf_config.hpp"

#include <optional>

#include <fmt/format.h>

#include "models/io/file.hpp"
#include "models/io/hf_families.hpp"
#include "models/io/json.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kMostConfigBytes = 4u << 20;

/// A token's id; what is not there is the family's default, null is none.
std::optional<std::int64_t> token_id(const JsonValue& root, std::string_view key,
                                     const HfConfig& config,
                                     std::optional<std::int64_t> otherwise = std::nullopt) {
  if (const auto value = root.find(key)) {
    return value->integer(0, config.vocab_size - 1);
  }
  const bool is_null = root.object().at_key(key).error() == simdjson::SUCCESS;
  return is_null || otherwise >= config.vocab_size ? std::nullopt : otherwise;
}

void read_tokens(const JsonValue& root, HfConfig& config) {
  config.pad_token_id = token_id(root, "pad_token_id", config, config.pad_token_id);
  config.bos_token_id = token_id(root, "bos_token_id", config);
  const auto eos = root.find("eos_token_id");
  if (eos && eos->is_array()) {
    for (const JsonValue& id : eos->items()) {
      config.eos_token_ids.push_back(id.integer(0, config.vocab_size - 1));
    }
  } else if (eos) {
    config.eos_token_ids.push_back(eos->integer(0, config.vocab_size - 1));
  }
}

void read_dtype(const JsonValue& root, HfConfig& config) {
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (const auto value = root.find(key)) {
      config.dtype = std::string(value->string());
      if (config.dtype != "float32" && config.dtype != "bfloat16" && config.dtype != "float16") {
        throw value->wrong("\"float32\", \"bfloat16\" or \"float16\"");
      }
    }
  }
}

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

HfConfig parse_hf_config(std::string_view json, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(
      json, {.where = "model config", .file = std::string(file), .advice = "correct config.json"});
  const JsonValue root = document.root();
  HfConfig config;
  config.json = std::string(json);
  read_family(root, config);
  if (const auto names = root.find("architectures")) {
    for (const JsonValue& name : names->items()) {
      config.architectures.emplace_back(name.string());
    }
  }
  const auto deviation = root.find("initializer_range");
  config.initializer_range = deviation ? deviation->number() : 0.02;
  if (config.initializer_range < 0) {
    throw deviation->wrong("a number of at least 0");
  }
  read_tokens(root, config);
  read_dtype(root, config);
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "config.json" : path;
  return parse_hf_config(read_file(file, "model config", kMostConfigBytes), file.string());
}

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
