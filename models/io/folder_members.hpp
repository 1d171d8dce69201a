// models/io/folder_members.hpp — the known members of the JSON files beside a model's config.json,
// and their effects: one list for each file (docs/folder_keys.md).
//
// Invariant: a member that changes which ids a text has is used or refused. A note names each
// member that is in no list. tests/tools/model_keys_test.py compares the lists with Transformers
// and PEFT.
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
  kNamed,     // ignored here, but not by Transformers: `generate` names it unless it is `neutral`
  kHarmless,  // changes nothing that is done here
};

struct FileMember {
  std::string_view key;
  FileMemberUse use;
  std::string_view neutral = {};  // JSON
};

std::span<const FileMember> tokenizer_config_members();
std::span<const FileMember> generation_config_members();

/// Any other member whose name ends so and whose value is a text names a special token, too.
inline constexpr std::string_view kTokenEnding = "_token";

/// Throws for a member of tokenizer_config.json that asks for other ids than are made here.
void refuse_tokenizer_members(const JsonValue& root);

/// Returns a note on the members of the folder's tokenizer_config.json that are in no list, if
/// there are any. Throws user_error if the file is malformed.
std::vector<std::string> tokenizer_config_notes(const std::filesystem::path& folder);

/// Returns notes on the members of generation_config.json that `generate` ignores, and on the
/// members in no list; none without the file. Throws user_error if the file is malformed.
std::vector<std::string> generation_config_notes(const std::filesystem::path& folder);

/// Returns the text of docs/folder_keys.md.
std::string folder_keys_page();

}  // namespace tandem
