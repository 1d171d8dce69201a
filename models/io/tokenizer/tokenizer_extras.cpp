// The rest of loading a Tokenizer: the post-processor's special tokens, and the members of
// tokenizer_config.json, which tokenizer_files.cpp has joined with those of its neighbours.
#include <algorithm>
#include <charconv>
#include <map>

#include "models/io/folder_members.hpp"
#include "models/io/tokenizer/tokenizer_class.hpp"
#include "models/io/tokenizer/tokenizer_load.hpp"
#include "models/io/tokenizer/tokenizer_members.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::size_t kMostTemplateItems = 1000;
// Transformers writes 1e30 for "no limit".
constexpr double kNoLength = 1e9;

/// Whether the value is a token: a text, or an object that says so. Transformers passes over any
/// other object under a name of the model's own.
bool is_token(const JsonValue& value) {
  if (!value.is_object()) {
    return value.raw().is_string();
  }
  const auto type = value.find(kTokenType);
  return type && type->raw().is_string() && type->string() == kAddedToken;
}

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
  if (!value || text_of_token(*value).empty()) {
    return std::nullopt;
  }
  return impl_->id_of.at(std::string(text_of_token(*value)));
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
    const auto known = impl_->id_of.find(content);
    if (added_.contains(content)) {  // these flags count, and the id of tokenizer.json
      add_token(token, known->second);
      continue;
    }
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
  const std::string content(text_of_token(token));
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
      tokenizer_origin(impl_->file));
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
  const JsonDocument document = JsonDocument::parse(tokenizer_json, tokenizer_origin(file));
  TokenizerLoader loader(file);
  loader.read(document.root());
  return loader.finish();
}

}  // namespace tandem
