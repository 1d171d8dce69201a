// actors/storage/hash_file.hpp — the hash of a file that is on disk, and of each of its tensors.
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

/// Whether what is read stays in the page cache: it should where the file is loaded next.
enum class PageCache : std::uint8_t { kKeep, kPass };

/// Reads `path` with two buffers, one being read while the other is hashed: on `pool`, or between
/// other work of the loop where it is null. `file` says size and tensors; its hashes are ignored.
/// Error (FileError, or a failure that names the path) if it cannot be read or is shorter.
Task<ManifestFile> hash_file(FileIo* io, std::string path, ManifestFile file,
                             CpuPool* pool = nullptr, PageCache cache = PageCache::kKeep);

/// The hash of all of a small file, as ContentHash::text(), by a thread that may wait for it.
/// user_error (`where`) if it cannot be read. Any thread.
[[nodiscard]] std::string content_hash_of(const std::filesystem::path& path,
                                          std::string_view where);

/// One piece; `hasher` and `bytes` live until it is done.
Task<> add_to_hash(FileHasher* hasher, std::span<const std::byte> bytes, CpuPool* pool);

}  // namespace tandem
