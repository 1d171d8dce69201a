// Opens a folder's tokenizer. Invariant: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json are joined into one object, by Transformers' rules, before any member is read.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "models/io/tokenizer/tokenizer_class.hpp"
#include "models/io/tokenizer/tokenizer_load.hpp"
#include "models/io/tokenizer/tokenizer_members.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kMostTokenizerBytes = 512u << 20;
constexpr std::uint64_t kMostConfigBytes = 64u << 20;
constexpr std::string_view kClass = "tokenizer_class";

/// A file of the folder, or nothing where it is not there.
std::optional<JsonDocument> document(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  const std::filesystem::path file = folder / name;
  if (!std::filesystem::exists(file, ignored)) {
    return std::nullopt;
  }
  return JsonDocument::load(file, tokenizer_origin(file.string()), kMostConfigBytes);
}

/// The list in tokenizer_config.json, and behind it what the other file's list has besides.
void write_union(JsonWriter& json, const std::optional<JsonValue>& first, const JsonValue& second) {
  std::vector<std::string> items;
  for (const JsonValue& list : {first.value_or(second), second}) {
    for (const JsonValue& item : list.items()) {
      std::string text = simdjson::minify(item.raw());
      if (std::ranges::find(items, text) == items.end()) {
        items.push_back(std::move(text));
      }
    }
  }
  json.key(kNewMore).begin_array();
  for (const std::string& item : items) {
    json.raw(item);
  }
  json.end_array();
}

/// A member of special_tokens_map.json, in which each object is a token whether it says so or not.
void write_mapped(JsonWriter& json, std::string_view key, const JsonValue& value) {
  if (!value.is_object() || key == kNewMore) {
    json.key(key).raw(simdjson::minify(value.raw()));
    return;
  }
  json.key(key).begin_object();
  for (const auto& [name, flag] : value.members()) {
    if (name != kTokenType) {
      json.key(name).raw(simdjson::minify(flag.raw()));
    }
  }
  json.field(kTokenType, kAddedToken).end_object();
}

/// Whether a member of special_tokens_map.json changes nothing: Transformers chooses the class
/// before it reads that file, and takes added tokens from the two other files.
bool has_no_effect(std::string_view key) { return key == kClass || key == kAddedTokens; }

/// tokenizer_config.json with the members of special_tokens_map.json in the place of its own.
std::string merged(const std::optional<JsonDocument>& config, const JsonValue& map) {
  JsonWriter json(0);
  json.begin_object();
  std::optional<JsonValue> more;
  bool has_more = false;
  if (config) {
    for (const auto& [key, value] : config->root().members()) {
      const bool is_more = key == kNewMore || key == kOldMore;
      has_more = has_more || is_more;
      if (is_more && value.is_array() && (key == kNewMore || !more)) {
        more = value;
      }
      const bool is_replaced = has_member(map, key) && key != kOldMore && !has_no_effect(key);
      if (!is_replaced && !(is_more && has_member(map, kNewMore))) {
        json.key(key).raw(simdjson::minify(value.raw()));
      }
    }
  }
  for (const auto& [key, value] : map.members()) {
    if (has_no_effect(key)) {
      continue;
    }
    if (key == kNewMore && value.is_array()) {
      write_union(json, more, value);
    } else if (key != kOldMore || !has_more) {
      write_mapped(json, key, value);
    }
  }
  json.end_object();
  return json.take();
}

/// With the class's own special tokens for those of which the files say nothing. One that would be
/// new is left out where the model (nothing: no config.json) has no row for it.
std::string with_defaults(std::string_view config, std::string_view class_name,
                          const std::optional<JsonDocument>& model, const TokenizerLoader& loader) {
  const auto rows = model ? model->root().find("vocab_size") : std::nullopt;
  const bool has_room = !rows || !rows->raw().is_int64() ||
                        rows->integer() > static_cast<std::int64_t>(loader.size());
  const JsonDocument document = JsonDocument::parse(config, tokenizer_origin(kTokenizerConfig));
  JsonWriter json(0);
  json.begin_object();
  for (const auto& [key, value] : document.root().members()) {
    json.key(key).raw(simdjson::minify(value.raw()));
  }
  for (const DefaultToken& token : default_tokens(class_name)) {
    if (!has_member(document.root(), token.name) && (has_room || loader.knows(token.text))) {
      json.field(token.name, token.text);
    }
  }
  json.end_object();
  return json.take();
}

/// The contents of the special tokens of `config` that can be new.
std::set<std::string, std::less<>> special_contents(const JsonValue& config) {
  std::set<std::string, std::less<>> found;
  const auto add = [&found](const JsonValue& token) {
    if (token.is_object() || token.raw().is_string()) {
      found.emplace(text_of_token(token));
    }
  };
  for (const std::string_view name : kSpecialNames) {
    if (const auto token = config.find(name)) {
      add(*token);
    }
  }
  const auto more = config.find(has_member(config, kNewMore) ? kNewMore : kOldMore);
  if (more && more->is_array()) {
    for (const JsonValue& token : more->items()) {
      add(token);
    }
  }
  return found;
}

/// `config` with the tokens of added_tokens.json that tokenizer.json does not add, in the form of
/// added_tokens_decoder.
std::string with_added_tokens(const std::string& config, const JsonValue& added,
                              const JsonValue& tokenizer) {
  std::set<std::string, std::less<>> known;
  if (const auto list = tokenizer.find("added_tokens")) {
    for (const JsonValue& token : list->items()) {
      known.emplace(token.at("content").string());
    }
  }
  std::map<std::int64_t, std::string> tokens;  // by their ids, in which order they are added
  for (const auto& [text, id] : added.members()) {
    if (!known.contains(text)) {
      tokens.emplace(id.integer(0), text);
    }
  }
  const JsonDocument document = JsonDocument::parse(config, tokenizer_origin(kTokenizerConfig));
  const auto special = special_contents(document.root());
  JsonWriter json(0);
  json.begin_object();
  for (const auto& [key, value] : document.root().members()) {
    json.key(key).raw(simdjson::minify(value.raw()));
  }
  json.key(kAddedTokens).begin_object();
  for (const auto& [id, text] : tokens) {
    const bool is_special = special.contains(text);
    json.key(std::to_string(id)).begin_object().field("content", text);
    json.field("special", is_special).field("normalized", !is_special).end_object();
  }
  json.end_object().end_object();
  return json.take();
}

/// Joins the members of the files beside tokenizer.json. Where tokenizer_config.json lists its
/// added tokens, the others are not read, as in Transformers.
std::optional<std::string> config_of(const std::filesystem::path& folder,
                                     const JsonValue& tokenizer) {
  const std::optional<JsonDocument> config = document(folder, kTokenizerConfig);
  const bool lists_added = config && has_member(config->root(), kAddedTokens);
  const std::optional<JsonDocument> map =
      lists_added ? std::nullopt : document(folder, "special_tokens_map.json");
  std::optional<std::string> joined =
      config ? std::optional(std::string(simdjson::minify(config->root().raw()))) : std::nullopt;
  if (map) {
    // Without effect in tokenizer_config.json beside a tokenizer.json, and obeyed in this file.
    for (const char* name : {"add_bos_token", "add_eos_token"}) {
      if (const auto value = map->root().find(name)) {
        throw value->error(fmt::format("{} gives other ids there than are made here", name));
      }
    }
    joined = merged(config, map->root());
  }
  const std::optional<JsonDocument> added =
      lists_added ? std::nullopt : document(folder, "added_tokens.json");
  return added ? with_added_tokens(joined.value_or("{}"), added->root(), tokenizer) : joined;
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    throw user_error(kTokenizerWhere,
                     "{} has no tokenizer.json; make one with transformers: "
                     "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
                     folder.string());
  }
  const JsonDocument tokenizer =
      JsonDocument::load(file, tokenizer_origin(file.string()), kMostTokenizerBytes);
  const std::string config = config_of(folder, tokenizer.root()).value_or("{}");
  const std::string path = (folder / kTokenizerConfig).string();
  const std::optional<JsonDocument> model = document(folder, "config.json");
  const JsonDocument given = JsonDocument::parse(config, tokenizer_origin(path));
  const std::string class_name =
      tokenizer_class(given.root(), model ? std::optional(model->root()) : std::nullopt);
  const std::optional<std::string> steps = steps_of_class(class_name, given.root());
  const std::optional<JsonDocument> of_class =
      steps ? std::optional(JsonDocument::parse(*steps, tokenizer_origin(path))) : std::nullopt;
  TokenizerLoader loader(file.string());
  loader.read(tokenizer.root(), of_class ? std::optional(of_class->root()) : std::nullopt);
  const JsonDocument all =
      JsonDocument::parse(with_defaults(config, class_name, model, loader), tokenizer_origin(path));
  loader.read_config(all.root(), class_name);
  loader.default_end_token();
  std::string note = steps_note(class_name, tokenizer.root(), file.string());
  if (const auto own = document(folder, kTokenizerConfig); note.empty() && own) {
    note = added_tokens_note(class_name, own->root(), tokenizer.root(), file.string());
  }
  loader.set_note(std::move(note));
  return loader.finish();
}

}  // namespace tandem
