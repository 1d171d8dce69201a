// models/foreign/foreign_index.hpp — the index of a foreign checkpoint, which tools/convert/
// prints: what the checkpoint holds, and in which file and at which byte the elements of each
// tensor lie.
#pragma once

#include <filesystem>
#include <string_view>

#include "models/foreign/imported_checkpoint.hpp"

namespace tandem {

/// Returns whether `name` may be a tensor's: UTF-8 without control characters, not empty and not
/// long.
bool is_tensor_name(std::string_view name);

/// Reads the index, whose files lie in `folder`, and maps them. Every number is checked: pieces lie
/// in their files and have as many elements as their tensor. Throws an Error (kUserInput) if one
/// does not fit. `path` of the result stays empty.
ImportedCheckpoint read_foreign_index(std::string_view json, const std::filesystem::path& folder);

}  // namespace tandem
