// models/data/token_file_writer.hpp — records of this program as a token file (docs/prepare.md),
// the form that `tandem prepare` writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "models/data/mask_check.hpp"
#include "models/data/memory_records.hpp"

namespace tandem {

/// Writes the file as a whole or not at all. `words`: of the header, beside the counts, which are
/// `masks`. Throws Error where the folder or the disk does not take it.
void write_token_file(const std::filesystem::path& path, const MemoryRecords& records,
                      const MaskSummary& masks, std::int64_t vocab_size,
                      std::map<std::string, std::string> words);

}  // namespace tandem
