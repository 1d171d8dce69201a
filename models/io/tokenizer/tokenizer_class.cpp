#include "models/io/tokenizer/tokenizer_class.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

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

/// A member that is a text; empty where it is none.
std::string_view text_or_none(const std::optional<JsonValue>& root, std::string_view key) {
  const auto value = root && root->is_object() ? root->find(key) : std::nullopt;
  return value && value->raw().is_string() ? value->string() : std::string_view();
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

bool decides_prefix_space(std::string_view class_name) {
  return class_name == kGpt2Class || class_name == kQwen2Class;
}

}  // namespace tandem
