// actors/storage/uncached_file.hpp — a file whose writes bypass the page cache as far as possible.
//
// Whole disk blocks are written straight from the caller's memory if its alignment matches, else
// through an aligned buffer. The bytes at both ends of a write that do not fill a block go through
// the page cache, and so does everything in a small file or on a file system without direct I/O.
// Invariant: the file's bytes are those of plain writes. A block bypasses the cache only if one
// write() covers all of it, so it never contains bytes of two writers.
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

/// Large files are read, written and hashed in pieces of this size; hashing one takes about 1 ms.
inline constexpr std::size_t kStoragePieceBytes = std::size_t{4} << 20;

/// Opens `path` for direct I/O; returns a closed file if the file system has none.
Task<IoFile> open_uncached(FileIo* io, std::string path, OpenMode mode);

class UncachedFile {
 public:
  /// Smaller files go through the page cache.
  static constexpr std::uint64_t kWorthBytes = std::uint64_t{1} << 20;

  /// Returns the size of a whole block: the system's page size, at least FileIo::kDirectAlignment.
  [[nodiscard]] static std::size_t block_bytes() noexcept;

  /// Opens a file for writing, which exists and has its full size.
  Task<> open(FileIo* io, std::string path, std::uint64_t size_bytes);
  /// Writes `bytes`, which are lent until it returns, at `offset`. Several writes may be under way.
  /// Copies are made on `pool` or, if that is null, on the loop between other work.
  Task<> write(std::uint64_t offset, std::span<const std::byte> bytes, CpuPool* pool);
  /// Shares bytes of `from` into this file by FileIo::share(), and returns its result. `from` lives
  /// until it returns. Offsets and size are multiples of block_bytes().
  Task<bool> share(std::uint64_t offset, const IoFile* from, std::uint64_t from_offset,
                   std::uint64_t bytes, CpuPool* pool);
  /// Makes all written bytes durable.
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
