#include "actors/storage/hash_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include "actors/memory/arena.hpp"
#include "actors/storage/content_hash.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/uncached_file.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/error.hpp"
#include "runtime/when_all.hpp"

namespace tandem {
namespace {

/// The bytes of a buffer that a piece of the file takes; past the page cache the kernel is asked
/// for whole blocks, and the file's end cuts the last one.
Task<> read_piece(FileIo* io, const IoFile* file, std::uint64_t offset, std::size_t bytes,
                  std::span<std::byte> buffer) {
  constexpr std::size_t kBlock = FileIo::kDirectAlignment;
  const std::size_t asked = file->is_direct() ? (bytes + kBlock - 1) / kBlock * kBlock : bytes;
  if (bytes > 0 && co_await io->read(*file, offset, buffer.first(asked)) < bytes) {
    throw failure(ExitCode::kFailure, "checkpoint",
                  "{} ends within the {} bytes at byte {}; it was shortened while in use",
                  file->path(), bytes, offset);
  }
}

}  // namespace

Task<> add_to_hash(FileHasher* hasher, std::span<const std::byte> bytes, CpuPool* pool) {
  if (pool != nullptr) {
    co_await pool->run([hasher, bytes] { hasher->add(bytes); }, "checkpoint: hash");
    co_return;
  }
  co_await yield();  // what was started before goes to the kernel meanwhile
  hasher->add(bytes);
}

Task<ManifestFile> hash_file(FileIo* io, std::string path, ManifestFile file, CpuPool* pool,
                             PageCache cache) {
  const std::uint64_t size = file.size_bytes;
  FileHasher hasher(std::move(file));
  IoFile open_file;
  if (cache == PageCache::kPass && size >= UncachedFile::kWorthBytes) {
    open_file = co_await open_uncached(io, path, OpenMode::kReadFile);
  }
  if (!open_file.is_open()) {
    open_file = co_await io->open(path, OpenMode::kReadFile);
  }
  const auto piece_at = [size](std::uint64_t offset) {
    return static_cast<std::size_t>(std::min<std::uint64_t>(size - offset, kStoragePieceBytes));
  };
  std::array<HostBuffer, 2> buffers = {HostBuffer(kStoragePieceBytes),
                                       HostBuffer(kStoragePieceBytes)};
  std::size_t read = piece_at(0);
  co_await read_piece(io, &open_file, 0, read, buffers[0].span());
  for (std::uint64_t end = read; read > 0; std::swap(buffers[0], buffers[1])) {
    const std::size_t next = piece_at(end);
    co_await when_all(read_piece(io, &open_file, end, next, buffers[1].span()),
                      add_to_hash(&hasher, buffers[0].span().first(read), pool));
    end += next;
    read = next;
  }
  co_await io->close(std::move(open_file));
  co_return hasher.result();
}

std::string content_hash_of(const std::filesystem::path& path, std::string_view where) {
  const FileHandle file = FileHandle::open_read(path, where);
  ContentHasher hasher;
  std::vector<std::byte> piece(kStoragePieceBytes);
  for (;;) {
    const ::ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got == 0) {
      return hasher.result().text();
    }
    if (got < 0 && errno != EINTR) {
      throw user_error(where, "cannot read {}: {}", path.string(),
                       std::generic_category().message(errno));
    }
    hasher.add(std::span(piece).first(got > 0 ? static_cast<std::size_t>(got) : 0));
  }
}

}  // namespace tandem
