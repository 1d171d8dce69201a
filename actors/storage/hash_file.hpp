// actors/storage/hash_file.hpp — computes the hash of a file on disk, and of each of its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "actors/storage/manifest.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// Whether the bytes that are read stay in the page cache: useful if the file is loaded next.
enum class PageCache : std::uint8_t { kKeep, kPass };

/// Returns `file` with the hashes of the file at `path`. There are two buffers: one is read while
/// the other is hashed, on `pool` or, if that is null, on the loop between other work. `file` gives
/// size and tensors; its hashes are ignored. Error (FileError, or a failure that names the path) if
/// the file cannot be read or is shorter.
Task<ManifestFile> hash_file(FileIo* io, std::string path, ManifestFile file,
                             CpuPool* pool = nullptr, PageCache cache = PageCache::kKeep);

/// Returns the hash of a small file, as ContentHash::text(); blocks. user_error (`where`) if it
/// cannot be read. Any thread.
[[nodiscard]] std::string content_hash_of(const std::filesystem::path& path,
                                          std::string_view where);

/// Adds one piece to the hash. `hasher` and `bytes` are lent until the task ends.
Task<> add_to_hash(FileHasher* hasher, std::span<const std::byte> bytes, CpuPool* pool);

}  // namespace tandem
