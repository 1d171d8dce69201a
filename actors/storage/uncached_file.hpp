// actors/storage/uncached_file.hpp — a file that is written past the page cache as far as that
// goes.
//
// Whole blocks go to the disk from the memory they lie in where that is aligned as they are, else
// by way of an aligned buffer. The bytes at both ends of a write that fill no block go through the
// page cache, and so does everything in a small file and on a file system that has no other way.
// Invariant: the file's bytes are those of plain writes. A block goes past the cache only if one
// write() covers all of it, so writes of neighbours, also by other processes, never meet in it.
// Thread rule: the loop's thread; FileIo and CpuPool outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/memory/arena.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// Large files are read, written and hashed in pieces of so much, each about 1 ms of hashing.
inline constexpr std::size_t kStoragePieceBytes = std::size_t{4} << 20;

/// Opens `path` past the page cache; nothing is open where the file system cannot.
Task<IoFile> open_uncached(FileIo* io, std::string path, OpenMode mode);

class UncachedFile {
 public:
  /// Files smaller than this are not worth it.
  static constexpr std::uint64_t kWorthBytes = std::uint64_t{1} << 20;

  /// The offsets of whole blocks are multiples of it: the system's pages, and no less than
  /// FileIo::kDirectAlignment.
  [[nodiscard]] static std::size_t block_bytes() noexcept;

  /// For writing; the file exists and has its full size.
  Task<> open(FileIo* io, std::string path, std::uint64_t size_bytes);
  /// `bytes` live until it returns. Several writes may be under way. Copies are made on `pool`, or
  /// between other work of the loop where it is null.
  Task<> write(std::uint64_t offset, std::span<const std::byte> bytes, CpuPool* pool);
  /// FileIo::share() into this file; `from` lives until it returns. Offsets and size are multiples
  /// of block_bytes().
  Task<bool> share(std::uint64_t offset, const IoFile* from, std::uint64_t from_offset,
                   std::uint64_t bytes, CpuPool* pool);
  /// All written bytes are on the medium afterwards.
  Task<> sync();
  Task<> close();
  /// Closes without reporting errors.
  void abandon();

 private:
  Task<> write_piece(std::uint64_t offset, std::span<const std::byte> bytes, CpuPool* pool);
  Task<> write_blocks(std::uint64_t offset, std::span<const std::byte> bytes, CpuPool* pool);

  FileIo* io_ = nullptr;
  IoFile cached_;
  IoFile uncached_;  // closed: everything goes through the cache
  std::vector<HostBuffer> spare_buffers_;
};

}  // namespace tandem
