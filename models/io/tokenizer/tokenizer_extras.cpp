// The rest of loading a Tokenizer: the post-processor's special tokens, and tokenizer_config.json.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "models/io/folder_members.hpp"
#include "models/io/tokenizer/tokenizer_class.hpp"
#include "models/io/tokenizer/tokenizer_load.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "tokenizer";
constexpr const char* kConfigName = "tokenizer_config.json";
constexpr std::uint64_t kMostTokenizerBytes = 512u << 20;
constexpr std::uint64_t kMostConfigBytes = 64u << 20;
constexpr std::size_t kMostTemplateItems = 1000;
// Transformers writes 1e30 for "no limit".
constexpr double kNoLength = 1e9;

JsonOrigin origin(std::string_view file) {
  return {.where = std::string(kWhere),
          .file = std::string(file),
          .advice = "correct the file or download it again"};
}

/// The text of a token, which the file gives alone or in an object with the token's flags.
std::string_view text_of(const JsonValue& token) {
  return token.is_object() ? token.at("content").string() : token.string();
}

constexpr std::string_view kType = "__type";
constexpr std::string_view kTokenType = "AddedToken";

/// Whether the value is a token: a text, or an object that says so. Transformers passes over any
/// other object under a name of the model's own.
bool is_token(const JsonValue& value) {
  if (!value.is_object()) {
    return value.raw().is_string();
  }
  const auto type = value.find(kType);
  return type && type->raw().is_string() && type->string() == kTokenType;
}

/// Whether the member is there, be it null.
bool has_member(const JsonValue& root, std::string_view key) {
  return root.object().at_key(key).error() == simdjson::SUCCESS;
}

// Two names of the list of special tokens without a name.
constexpr std::string_view kNewMore = "extra_special_tokens";
constexpr std::string_view kOldMore = "additional_special_tokens";
constexpr std::string_view kClass = "tokenizer_class";
constexpr std::string_view kAddedTokens = "added_tokens_decoder";

constexpr std::array<std::string_view, 7> kSpecialNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

}  // namespace

std::int32_t TokenizerLoader::known_id(const JsonValue& value) const {
  const std::int64_t id = value.integer(0);
  if (id >= static_cast<std::int64_t>(impl_->tokens.size()) ||
      !impl_->tokens[static_cast<std::size_t>(id)].known) {
    throw value.error(fmt::format("no token has the id {}", id));
  }
  return static_cast<std::int32_t>(id);
}

void TokenizerLoader::wrap(std::vector<std::int32_t> before,
                           const std::vector<std::int32_t>& behind) {
  before.insert(before.end(), impl_->prefix.begin(), impl_->prefix.end());
  impl_->prefix = std::move(before);
  impl_->suffix.insert(impl_->suffix.end(), behind.begin(), behind.end());
}

void TokenizerLoader::read_post_processor(const JsonValue& part) {
  const JsonValue type = part.at("type");
  const std::string_view name = type.string();
  if (name == "Sequence") {
    for (const JsonValue& inner : part.at("processors").items()) {
      read_post_processor(inner);
    }
  } else if (name == "TemplateProcessing") {
    read_template(part);
  } else if (name == "RobertaProcessing" || name == "BertProcessing") {
    const auto id = [&](std::string_view key) {
      const auto pair = part.at(key).items();
      if (pair.size() != 2) {
        throw part.at(key).wrong("a pair [token, id]");
      }
      return known_id(pair[1]);
    };
    wrap({id("cls")}, {id("sep")});
  } else if (name != "ByteLevel") {  // ByteLevel only moves offsets, which are not computed here
    throw type.wrong(
        "one of ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing, Sequence");
  }
}

std::vector<std::int32_t> TokenizerLoader::template_ids(const JsonValue& part,
                                                        std::string_view name) {
  std::vector<std::int32_t> ids;
  for (const JsonValue& id : part.at("special_tokens").at(name).at("ids").items()) {
    ids.push_back(known_id(id));
  }
  return ids;
}

void TokenizerLoader::read_template(const JsonValue& part) {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
  int texts = 0;
  const JsonValue single = part.at("single");
  if (single.array().size() > kMostTemplateItems) {
    throw single.error(fmt::format("it has more than {} items", kMostTemplateItems));
  }
  for (const JsonValue& item : single.items()) {
    if (const auto token = item.find("SpecialToken")) {
      auto& side = texts == 0 ? before : behind;
      const auto ids = template_ids(part, token->at("id").string());
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      const JsonValue id = item.at("Sequence").at("id");
      if (id.string() != "A") {
        throw id.wrong("\"A\"");
      }
      ++texts;
    }
  }
  if (texts != 1) {
    throw single.error(fmt::format("it has {} places for the text, one is needed", texts));
  }
  wrap(std::move(before), behind);
}

std::optional<std::int32_t> TokenizerLoader::named_token(const JsonValue& root,
                                                         std::string_view key) const {
  const auto value = root.find(key);
  if (!value || text_of(*value).empty()) {
    return std::nullopt;
  }
  return impl_->id_of.at(std::string(text_of(*value)));
}

void TokenizerLoader::read_config(const JsonValue& root, std::string_view class_name) {
  class_name_ = class_name;
  refuse_tokenizer_members(root);
  if (const auto more = root.find(kAddedTokens)) {
    read_added_tokens(*more);
  }
  read_special_tokens(root);
  read_prefix_space(root);
  impl_->pad_id = named_token(root, "pad_token");
  impl_->eos_id = named_token(root, "eos_token");
  impl_->bos_id = named_token(root, "bos_token");
  const std::string_view length_key =
      has_member(root, "model_max_length") ? "model_max_length" : "max_len";
  if (const auto length = root.find(length_key)) {
    const double most = length->number();
    if (most < 1) {
      throw length->wrong("a length of at least 1");
    }
    if (most < kNoLength) {
      impl_->model_max_length = static_cast<std::int64_t>(most);
    }
  }
}

/// In the order of their ids, each of which is its token's already, or the next one.
void TokenizerLoader::read_added_tokens(const JsonValue& decoder) {
  std::map<std::int64_t, JsonValue> tokens;
  for (const auto& [text, token] : decoder.members()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc{} || end != text.data() + text.size() || id < 0) {
      throw token.error("its name is not a token id");
    }
    tokens.emplace(id, token);
  }
  for (const auto& [id, token] : tokens) {
    const std::string content(token.at("content").string());
    if (added_.contains(content)) {
      continue;
    }
    const auto known = impl_->id_of.find(content);
    const std::int64_t right = known == impl_->id_of.end()
                                   ? static_cast<std::int64_t>(impl_->tokens.size())
                                   : static_cast<std::int64_t>(known->second);
    if (id != right) {
      throw token.error(
          fmt::format("it, or added_tokens.json, gives {} the id {}, and {} is the right one",
                      json_quote(content), id, right));
    }
    add_token(token, id);
  }
}

/// Special tokens are looked for in a text: those that have a name, in Transformers' order, and
/// then the list of others.
void TokenizerLoader::read_special_tokens(const JsonValue& root) {
  for (const std::string_view name : kSpecialNames) {
    if (const auto token = root.find(name)) {
      add_special(*token);
    }
  }
  for (const auto& [key, token] : root.members()) {
    if (key.ends_with(kTokenEnding) && !key.starts_with("add_") &&
        std::ranges::find(kSpecialNames, key) == kSpecialNames.end() && is_token(token)) {
      add_special(token);
    }
  }
  // The newer one of two names counts, even if it is null.
  const bool is_newer = has_member(root, kNewMore);
  for (const std::string_view name :
       {std::string_view("model_specific_special_tokens"), is_newer ? kNewMore : kOldMore}) {
    const auto list = root.find(name);
    if (list && list->is_object()) {
      for (const auto& [key, token] : list->members()) {
        add_special(token);
      }
    } else if (list) {
      for (const JsonValue& token : list->items()) {
        add_special(token);
      }
    }
  }
}

/// A token that is a text, or an object with its flags; one that the vocabulary lacks comes behind
/// it.
void TokenizerLoader::add_special(const JsonValue& token) {
  const std::string content(text_of(token));
  if (content.empty() || added_.contains(content)) {
    return;
  }
  const auto known = impl_->id_of.find(content);
  const std::int64_t id = known == impl_->id_of.end()
                              ? static_cast<std::int64_t>(impl_->tokens.size())
                              : static_cast<std::int64_t>(known->second);
  const auto flag = [&](std::string_view key) {
    return token.is_object() && bool_or(token, key, false);
  };
  const JsonDocument whole = JsonDocument::parse(
      fmt::format(R"({{"content": {}, "special": true, "normalized": {}, "lstrip": {}, )"
                  R"("rstrip": {}, "single_word": {}}})",
                  json_quote(content), flag("normalized"), flag("lstrip"), flag("rstrip"),
                  flag("single_word")),
      origin(impl_->file));
  add_token(whole.root(), id);
}

/// Some classes put a space before a text if tokenizer_config.json says so, whatever tokenizer.json
/// has.
void TokenizerLoader::read_prefix_space(const JsonValue& root) {
  if (!byte_level_seen_ || !decides_prefix_space(class_name_)) {
    return;
  }
  const bool wanted = bool_or(root, "add_prefix_space", false);
  std::vector<PreTokenizerStep> before = std::move(impl_->steps);
  impl_->steps.clear();
  for (std::size_t i = 0; i <= before.size(); ++i) {
    if (i == byte_level_at_ && wanted) {
      impl_->steps.emplace_back(PrefixSpace{});
    }
    const bool is_old =
        i == byte_level_at_ && i < before.size() && std::holds_alternative<PrefixSpace>(before[i]);
    if (i < before.size() && !is_old) {
      impl_->steps.emplace_back(std::move(before[i]));
    }
  }
}

void TokenizerLoader::default_end_token() {
  const auto found = impl_->id_of.find("<|endoftext|>");
  if (!impl_->eos_id && found != impl_->id_of.end()) {
    impl_->eos_id = found->second;
  }
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(tokenizer_json, origin(file));
  TokenizerLoader loader(file);
  loader.read(document.root());
  return loader.finish();
}

namespace {

/// A file of the folder, or nothing where it is not there.
std::optional<JsonDocument> document(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  const std::filesystem::path file = folder / name;
  if (!std::filesystem::exists(file, ignored)) {
    return std::nullopt;
  }
  return JsonDocument::load(file, origin(file.string()), kMostConfigBytes);
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
    if (name != kType) {
      json.key(name).raw(simdjson::minify(flag.raw()));
    }
  }
  json.field(kType, kTokenType).end_object();
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
  const JsonDocument document = JsonDocument::parse(config, origin(kConfigName));
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
      found.emplace(text_of(token));
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
  const JsonDocument document = JsonDocument::parse(config, origin(kConfigName));
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
  const std::optional<JsonDocument> config = document(folder, kConfigName);
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
    throw user_error(kWhere,
                     "{} has no tokenizer.json; make one with transformers: "
                     "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
                     folder.string());
  }
  const JsonDocument tokenizer =
      JsonDocument::load(file, origin(file.string()), kMostTokenizerBytes);
  const std::string config = config_of(folder, tokenizer.root()).value_or("{}");
  const std::string path = (folder / kConfigName).string();
  const std::optional<JsonDocument> model = document(folder, "config.json");
  const JsonDocument given = JsonDocument::parse(config, origin(path));
  const std::string class_name =
      tokenizer_class(given.root(), model ? std::optional(model->root()) : std::nullopt);
  const std::optional<std::string> steps = steps_of_class(class_name, given.root());
  const std::optional<JsonDocument> of_class =
      steps ? std::optional(JsonDocument::parse(*steps, origin(path))) : std::nullopt;
  TokenizerLoader loader(file.string());
  loader.read(tokenizer.root(), of_class ? std::optional(of_class->root()) : std::nullopt);
  const JsonDocument all =
      JsonDocument::parse(with_defaults(config, class_name, model, loader), origin(path));
  loader.read_config(all.root(), class_name);
  loader.default_end_token();
  loader.set_note(steps_note(class_name, tokenizer.root(), file.string()));
  return loader.finish();
}

}  // namespace tandem
