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

/// The class by tokenizer_config.json and config.json (nothing: it is not there).
std::string tokenizer_class(const JsonValue& config, const std::optional<JsonValue>& model);

/// Special tokens that the class has where no file says anything of them.
std::span<const DefaultToken> default_tokens(std::string_view class_name);

/// The normalizer, pre-tokenizer and unknown token of a class that puts its own in the place of
/// tokenizer.json's, as a JSON object; nothing for any other. Not for a vocabulary of bytes, whose
/// spaces such steps would lose. Throws for members of tokenizer_config.json of another type.
std::optional<std::string> steps_of_class(std::string_view class_name, const JsonValue& config);

/// Whether it puts a space before a text by tokenizer_config.json alone, whatever tokenizer.json
/// has.
bool decides_prefix_space(std::string_view class_name);

}  // namespace tandem
