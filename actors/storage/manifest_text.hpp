// actors/storage/manifest_text.hpp — the parts of a manifest's text: it begins with a format and a
// version, lists files, and ends with the hash of everything before it. Internal.
//
// Invariant: only texts that were written here, bit for bit, are accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/json.hpp"
#include "actors/storage/manifest.hpp"

namespace tandem {

/// Parses a text of that format and version that ends with its own hash. Error (user input), with
/// `path`, for any other text.
JsonDocument parse_hashed(const std::string& text, const std::string& path, std::string_view format,
                          std::int64_t version);
/// Throws Error unless the object has `count` members.
void check_members(const JsonValue& value, std::size_t count);

std::string begin_hashed(std::string_view format, std::int64_t version);
void end_hashed(std::string& text);

/// Reads entries with distinct names, whose tensors cover their data.
std::vector<ManifestFile> read_file_entries(const JsonValue& list);
void write_file_entries(std::string& text, const std::vector<ManifestFile>& files);

/// Reads a file of the whole checkpoint, whose tensors have distinct names.
PlannedFile read_planned_file(const JsonValue& value);
void write_planned_file(std::string& text, const PlannedFile& file);

}  // namespace tandem
