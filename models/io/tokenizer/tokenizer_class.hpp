// models/io/tokenizer/tokenizer_class.hpp — the class of Transformers that reads a model's
// tokenizer, and its additions to the files. tools/prepare/tokenizer.py has the same rules.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "actors/storage/json.hpp"

namespace tandem {

struct DefaultToken {
  std::string_view name;
  std::string_view text;
};

/// Returns the class by tokenizer_config.json and config.json (`model`; absent: there is no such
/// file).
std::string tokenizer_class(const JsonValue& config, const std::optional<JsonValue>& model);

/// Returns the special tokens that the class has if no file mentions them.
std::span<const DefaultToken> default_tokens(std::string_view class_name);

/// Returns the normalizer, pre-tokenizer and unknown token of a class that replaces
/// tokenizer.json's by its own, as a JSON object; nullopt for any other class. Do not use it for a
/// vocabulary of bytes: these steps would lose its spaces. Throws if a member of
/// tokenizer_config.json has another type.
std::optional<std::string> steps_of_class(std::string_view class_name, const JsonValue& config);

/// Returns a note if the class of Transformers 5 replaces the normalizer and pre-tokenizer of
/// tokenizer.json (`file`) by others, and the file's count here: it is how the model was trained,
/// and earlier versions read it so. Empty: there is no difference.
std::string steps_note(std::string_view class_name, const JsonValue& tokenizer,
                       std::string_view file);

/// Returns a note if tokenizer.json (`file`) adds a token that `config`, the
/// tokenizer_config.json, lists no flags of, and the class of Transformers 5 knows listed tokens
/// alone; the token counts here. Empty: there is no difference.
std::string added_tokens_note(std::string_view class_name, const JsonValue& config,
                              const JsonValue& tokenizer, std::string_view file);

/// Returns whether the class puts a space before a text by tokenizer_config.json alone, whatever
/// tokenizer.json has.
bool decides_prefix_space(std::string_view class_name);

}  // namespace tandem
