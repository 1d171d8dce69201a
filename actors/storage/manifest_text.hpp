// actors/storage/manifest_text.hpp — what the texts of manifest.json and slices.json have in
// common: a format and a version first, entries of files, and at the end the hash of everything
// before it. Internal.
//
// Invariant: what is read back was written here, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/json.hpp"
#include "actors/storage/manifest.hpp"

namespace tandem {

/// The document of a text that ends with its own hash, of that format and version. Error (user
/// input) else; `path` is for its line.
JsonDocument parse_hashed(const std::string& text, const std::string& path, std::string_view format,
                          std::int64_t version);
/// Throws unless the object has `count` members.
void check_members(const JsonValue& value, std::size_t count);

std::string begin_hashed(std::string_view format, std::int64_t version);
void end_hashed(std::string& text);

/// Entries whose names differ, each with tensors that cover its data.
std::vector<ManifestFile> read_file_entries(const JsonValue& list);
void write_file_entries(std::string& text, const std::vector<ManifestFile>& files);

}  // namespace tandem
