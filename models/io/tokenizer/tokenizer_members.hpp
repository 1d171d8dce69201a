// models/io/tokenizer/tokenizer_members.hpp — the members of tokenizer_config.json and its
// neighbours that both the joining of the files and the reading of the joined one look at.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "actors/storage/json.hpp"

namespace tandem {

inline constexpr std::string_view kTokenizerWhere = "tokenizer";
inline constexpr const char* kTokenizerConfig = "tokenizer_config.json";
// Two names of the list of special tokens without a name.
inline constexpr std::string_view kNewMore = "extra_special_tokens";
inline constexpr std::string_view kOldMore = "additional_special_tokens";
inline constexpr std::string_view kAddedTokens = "added_tokens_decoder";
inline constexpr std::string_view kTokenType = "__type";
inline constexpr std::string_view kAddedToken = "AddedToken";
inline constexpr std::array<std::string_view, 7> kSpecialNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

inline JsonOrigin tokenizer_origin(std::string_view file) {
  return {.where = std::string(kTokenizerWhere),
          .file = std::string(file),
          .advice = "correct the file or download it again"};
}

/// The text of a token, which the file gives alone or in an object with the token's flags.
inline std::string_view text_of_token(const JsonValue& token) {
  return token.is_object() ? token.at("content").string() : token.string();
}

/// Whether the member is there, be it null.
inline bool has_member(const JsonValue& root, std::string_view key) {
  return root.object().at_key(key).error() == simdjson::SUCCESS;
}

}  // namespace tandem
