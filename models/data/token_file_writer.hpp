// models/data/token_file_writer.hpp — writes records as a token file (docs/prepare.md), in the form
// of `tandem prepare`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "models/data/mask_check.hpp"
#include "models/data/memory_records.hpp"

namespace tandem {

/// Writes the file, complete or not at all. `words`: the header's words beside the counts, which
/// come from `masks`. Throws Error if the folder or the disk does not take the file.
void write_token_file(const std::filesystem::path& path, const MemoryRecords& records,
                      const MaskSummary& masks, std::int64_t vocab_size,
                      std::map<std::string, std::string> words);

}  // namespace tandem
