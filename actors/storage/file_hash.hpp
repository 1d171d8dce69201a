// actors/storage/file_hash.hpp — XXH3-128 of a small file, by a thread that may wait for it
// (hash_file.hpp: of any file, on the loop).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tandem {

/// As ContentHash::text(). user_error (`where`) if the file cannot be read. Any thread.
[[nodiscard]] std::string content_hash_of(const std::filesystem::path& path,
                                          std::string_view where);

}  // namespace tandem
