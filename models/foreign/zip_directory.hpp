// models/foreign/zip_directory.hpp — finds the entries of a zip archive that torch.save has
// written: every entry is stored uncompressed, at a fixed position in the file.
//
// The file is not trusted: every number is checked before it is used.
// Invariant: names are plain paths inside the archive and differ from each other, every entry's
// bytes lie in the file, and no two entries share a byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "actors/storage/file.hpp"

namespace tandem {

struct ZipEntry {
  std::string name;
  std::uint64_t begin = 0;  // of its bytes, in the file
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  // 0: the writer left it out
};

/// Returns the entries. Throws Error (kUserInput) if the file is no zip archive or is cut short, or
/// if it has packed or encrypted entries, names that lead out of the archive or occur twice, or
/// entries that overlap or lie outside the file.
std::vector<ZipEntry> read_zip_directory(const FileHandle& file, std::uint64_t size_bytes,
                                         const std::filesystem::path& path);

}  // namespace tandem
