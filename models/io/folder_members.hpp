// models/io/folder_members.hpp — the known members of the JSON files beside a model's config.json,
// and their effects: one list for each file (docs/folder_keys.md).
//
// Invariant: a member that changes which ids a text has is used or refused. One that is in no list
// is named in a note. tests/tools/model_keys_test.py compares the lists with Transformers and PEFT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/json.hpp"

namespace tandem {

enum class FileMemberUse : std::uint8_t {
  kUsed,
  kRefused,   // unless it is null, false or empty
  kNamed,     // left aside here and not elsewhere: `generate` names it unless it is `neutral`
  kHarmless,  // changes nothing that is done here
};

struct FileMember {
  std::string_view key;
  FileMemberUse use;
  std::string_view neutral = {};  // JSON
};

std::span<const FileMember> tokenizer_config_members();
std::span<const FileMember> generation_config_members();

/// Members of every other name that ends so and whose value is a text name special tokens, too.
inline constexpr std::string_view kTokenEnding = "_token";

/// Throws for a member of tokenizer_config.json that asks for other ids than are made here.
void refuse_tokenizer_members(const JsonValue& root);

/// A note on the members of the folder's tokenizer_config.json that are in no list; none without
/// it. Throws user_error for a file that is malformed.
std::vector<std::string> tokenizer_config_notes(const std::filesystem::path& folder);

/// Notes on what generation_config.json asks for and `generate` leaves aside, and on the members
/// that are in no list; none without the file. Throws user_error for a file that is malformed.
std::vector<std::string> generation_config_notes(const std::filesystem::path& folder);

/// docs/folder_keys.md
std::string folder_keys_page();

}  // namespace tandem
