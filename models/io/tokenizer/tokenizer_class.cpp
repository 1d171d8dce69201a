#include "models/io/tokenizer/tokenizer_class.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/io/tokenizer/tokenizer_members.hpp"

namespace tandem {
namespace {

constexpr std::string_view kPlain = "TokenizersBackend";
constexpr std::string_view kGpt2Class = "GPT2Tokenizer";
constexpr std::string_view kQwen2Class = "Qwen2Tokenizer";
constexpr std::string_view kLlamaClass = "LlamaTokenizer";
constexpr std::string_view kGemmaClass = "GemmaTokenizer";
constexpr std::string_view kEndOfText = "<|endoftext|>";

using Pair = std::pair<std::string_view, std::string_view>;

// model_type -> the class that Transformers has for it, where it has one.
constexpr std::array<Pair, 9> kRegistered = {{{"gpt2", kGpt2Class},
                                              {"qwen2", kQwen2Class},
                                              {"qwen3", kQwen2Class},
                                              {"qwen3_moe", kQwen2Class},
                                              {"gemma3_text", kGemmaClass},
                                              {"gemma3", kGemmaClass},
                                              {"mistral", kPlain},
                                              {"mixtral", kPlain},
                                              {"phi3", kPlain}}};
// Their published files name another class than the one that counts.
constexpr std::array<std::string_view, 2> kWrongInFiles = {"qwen2", "phi3"};

constexpr std::array<DefaultToken, 3> kGpt2Tokens = {
    {{"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"unk_token", kEndOfText}}};
constexpr std::array<DefaultToken, 3> kQwen2Tokens = {
    {{"eos_token", kEndOfText}, {"unk_token", kEndOfText}, {"pad_token", kEndOfText}}};
constexpr std::array<DefaultToken, 3> kLlamaTokens = {
    {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}};
constexpr std::array<DefaultToken, 5> kGemmaTokens = {{{"bos_token", "<bos>"},
                                                       {"eos_token", "<eos>"},
                                                       {"unk_token", "<unk>"},
                                                       {"pad_token", "<pad>"},
                                                       {"mask_token", "<mask>"}}};

constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

/// A member that is a text; empty where it is none.
std::string_view text_or_none(const std::optional<JsonValue>& root, std::string_view key) {
  const auto value = root && root->is_object() ? root->find(key) : std::nullopt;
  return value && value->raw().is_string() ? value->string() : std::string_view();
}

/// Adds a word for each step of a normalizer or pre-tokenizer, in order. A space before the text is
/// a setting of its own.
void add_kinds_of_steps(const JsonValue& step, std::vector<std::string>& kinds) {
  const std::string_view type = text_or_none(step, "type");
  if (type == "Sequence") {
    for (const char* key : {"normalizers", "pretokenizers"}) {
      if (const auto steps = step.find(key)) {
        for (const JsonValue& inner : steps->items()) {
          add_kinds_of_steps(inner, kinds);
        }
      }
    }
  } else if (type == "ByteLevel") {
    kinds.emplace_back(bool_or(step, "use_regex", true) ? "ByteLevel" : "ByteLevel of split words");
  } else if (type == "Split") {
    const auto pattern = step.find("pattern");
    const std::string_view regex = pattern ? text_or_none(*pattern, "Regex") : std::string_view();
    kinds.push_back(fmt::format("Split {}{} {}", text_or_none(step, "behavior"),
                                bool_or(step, "invert", false) ? " inverted" : "", regex));
  } else if (!type.empty()) {
    kinds.emplace_back(type);
  }
}

}  // namespace

std::string tokenizer_class(const JsonValue& config, const std::optional<JsonValue>& model) {
  constexpr std::string_view kKey = "tokenizer_class";
  constexpr std::string_view kFast = "Fast";
  std::string_view given = text_or_none(config, kKey);
  given = given.empty() ? text_or_none(model, kKey) : given;
  if (given.ends_with(kFast)) {
    given.remove_suffix(kFast.size());
  }
  const std::string_view type = text_or_none(model, "model_type");
  const auto* const found = std::ranges::find(kRegistered, type, &Pair::first);
  if (found == kRegistered.end()) {
    return std::string(given.empty() ? kPlain : given);
  }
  const bool is_wrong = std::ranges::find(kWrongInFiles, type) != kWrongInFiles.end();
  return std::string(given.empty() || found->second == kPlain || is_wrong ? found->second : given);
}

std::span<const DefaultToken> default_tokens(std::string_view class_name) {
  if (class_name == kGpt2Class) {
    return kGpt2Tokens;
  }
  if (class_name == kQwen2Class) {
    return kQwen2Tokens;
  }
  if (class_name == kLlamaClass) {
    return kLlamaTokens;
  }
  return class_name == kGemmaClass ? std::span<const DefaultToken>(kGemmaTokens)
                                   : std::span<const DefaultToken>();
}

std::optional<std::string> steps_of_class(std::string_view class_name, const JsonValue& config) {
  if (class_name == kLlamaClass) {
    const bool begins = bool_or(config, "add_prefix_space", true);
    const std::string_view scheme = !begins                            ? "never"
                                    : bool_or(config, "legacy", false) ? "always"
                                                                       : "first";
    return fmt::format(
        R"({{"normalizer": null, "pre_tokenizer": {{"type": "Metaspace", "replacement": "\u2581", )"
        R"("prepend_scheme": "{}", "split": false}}, "unk_token": null}})",
        scheme);
  }
  if (class_name == kGemmaClass) {
    const auto unknown = config.find("unk_token");
    const std::string_view text = !unknown               ? "<unk>"
                                  : unknown->is_object() ? unknown->at("content").string()
                                                         : unknown->string();
    return fmt::format(R"({{"normalizer": {{"type": "Replace", "pattern": {{"String": " "}}, )"
                       R"("content": "\u2581"}}, )"
                       R"("pre_tokenizer": {{"type": "Split", "pattern": {{"String": " "}}, )"
                       R"("behavior": "MergedWithPrevious", "invert": false}}, "unk_token": {}}})",
                       json_quote(text));
  }
  return std::nullopt;
}

std::string steps_note(std::string_view class_name, const JsonValue& tokenizer,
                       std::string_view file) {
  std::vector<std::string> expected;
  if (class_name == kGpt2Class) {
    expected = {"ByteLevel"};
  } else if (class_name == kQwen2Class) {
    expected = {"NFC", fmt::format("Split Isolated {}", kQwen2Words), "ByteLevel of split words"};
  } else {
    return {};
  }
  std::vector<std::string> found;
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    if (const auto step = tokenizer.find(key)) {
      add_kinds_of_steps(*step, found);
    }
  }
  return found == expected
             ? std::string()
             : fmt::format(
                   "{}: its normalizer and pre_tokenizer count; Transformers 5 has others "
                   "for tokenizer_class {}, and may give other ids",
                   file, class_name);
}

std::string added_tokens_note(std::string_view class_name, const JsonValue& config,
                              const JsonValue& tokenizer, std::string_view file) {
  constexpr std::array kClasses = {kGpt2Class, kQwen2Class, kLlamaClass, kGemmaClass};
  const auto listed = config.find(kAddedTokens);
  const auto added = tokenizer.find("added_tokens");
  if (std::ranges::find(kClasses, class_name) == kClasses.end() || !added || !listed ||
      !listed->is_object()) {
    return {};
  }
  std::set<std::string, std::less<>> contents;
  for (const auto& [id, token] : listed->members()) {
    contents.emplace(text_of_token(token));
  }
  for (const JsonValue& token : added->items()) {
    const std::string_view content = token.at("content").string();
    if (!contents.contains(content)) {
      return fmt::format(
          "{}: its added token {} counts; added_tokens_decoder lacks it, so Transformers 5 gives "
          "other ids with tokenizer_class {}",
          file, content, class_name);
    }
  }
  return {};
}

bool decides_prefix_space(std::string_view class_name) {
  return class_name == kGpt2Class || class_name == kQwen2Class;
}

}  // namespace tandem
