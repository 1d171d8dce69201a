// actors/storage/hash_file.hpp — the hash of a file that is on disk, and of each of its tensors.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "actors/storage/manifest.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// Large files are read, written and hashed in pieces of so much, each about 1 ms of hashing.
inline constexpr std::size_t kStoragePieceBytes = std::size_t{4} << 20;

/// Reads `path` with two buffers, one being read while the other is hashed: on `pool`, or between
/// other work of the loop where it is null. `file` says size and tensors; its hashes are ignored.
/// Error (FileError, or a failure that names the path) if it cannot be read or is shorter.
Task<ManifestFile> hash_file(FileIo* io, std::string path, ManifestFile file,
                             CpuPool* pool = nullptr);

/// One piece; `hasher` and `bytes` live until it is done.
Task<> add_to_hash(FileHasher* hasher, std::span<const std::byte> bytes, CpuPool* pool);

}  // namespace tandem
