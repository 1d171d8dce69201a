// The rest of loading a Tokenizer: the post-processor's special tokens, and tokenizer_config.json.
#include <charconv>

#include "models/io/tokenizer/tokenizer_load.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "tokenizer";
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
  if (!value) {
    return std::nullopt;
  }
  const JsonValue content = value->is_object() ? value->at("content") : *value;
  const auto found = impl_->id_of.find(content.string());
  if (found == impl_->id_of.end()) {
    throw content.error(fmt::format("{} is not in the vocabulary", content.text()));
  }
  return found->second;
}

void TokenizerLoader::read_config(const JsonValue& root) {
  if (const auto more = root.find("added_tokens_decoder")) {
    for (const auto& [text, token] : more->members()) {
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
      if (error != std::errc{} || end != text.data() + text.size() || id < 0) {
        throw token.error("its name is not a token id");
      }
      if (!impl_->id_of.contains(token.at("content").string())) {
        add_token(token, id);
      }
    }
  }
  read_special_tokens(root);
  read_prefix_space(root);
  const auto set = [&](std::string_view key, std::optional<std::int32_t>& id) {
    if (!id) {
      id = named_token(root, key);
    }
  };
  set("pad_token", impl_->pad_id);
  set("eos_token", impl_->eos_id);
  set("bos_token", impl_->bos_id);
  if (const auto length = root.find("model_max_length")) {
    const double most = length->number();
    if (most < 1) {
      throw length->wrong("a length of at least 1");
    }
    if (most < kNoLength) {
      impl_->model_max_length = static_cast<std::int64_t>(most);
    }
  }
}

/// Special tokens are looked for in a text, wherever a file names them.
void TokenizerLoader::read_special_tokens(const JsonValue& root) {
  for (const std::string_view name : {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"}) {
    const auto token = root.find(name);
    if (token && impl_->id_of.contains(text_of(*token))) {
      add_special(*token);
    }
  }
  for (const std::string_view name : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = root.find(name);
    if (!list) {
      continue;
    }
    if (list->is_object()) {
      for (const auto& [key, token] : list->members()) {
        add_special(token);
      }
    } else {
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

/// These classes put a space before a text as tokenizer_config.json says, whatever tokenizer.json
/// has.
void TokenizerLoader::read_prefix_space(const JsonValue& root) {
  const auto type = root.find("tokenizer_class");
  const auto wanted = root.find("add_prefix_space");
  if (!type || !wanted || !byte_level_seen_ ||
      !(type->string().starts_with("GPT2Tokenizer") ||
        type->string().starts_with("Qwen2Tokenizer"))) {
    return;
  }
  std::vector<PreTokenizerStep> before = std::move(impl_->steps);
  impl_->steps.clear();
  for (std::size_t i = 0; i <= before.size(); ++i) {
    if (i == byte_level_at_ && wanted->boolean()) {
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

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    throw user_error(kWhere,
                     "{} has no tokenizer.json; make one with transformers: "
                     "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
                     folder.string());
  }
  TokenizerLoader loader(file.string());
  loader.read(JsonDocument::load(file, origin(file.string()), kMostTokenizerBytes).root());
  for (const std::string_view name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (std::filesystem::exists(folder / name, ignored)) {
      const std::string path = (folder / name).string();
      loader.read_config(JsonDocument::load(path, origin(path), kMostConfigBytes).root());
    }
  }
  loader.default_end_token();
  return loader.finish();
}

}  // namespace tandem
