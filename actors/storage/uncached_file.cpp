#include "actors/storage/uncached_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "runtime/sleep.hpp"

namespace tandem {
namespace {

Task<> copy(std::byte* to, std::span<const std::byte> from, CpuPool* pool) {
  const auto copy_all = [to, from] { std::memcpy(to, from.data(), from.size()); };
  if (pool != nullptr) {
    co_await pool->run(copy_all, "checkpoint: copy");
    co_return;
  }
  co_await yield();
  copy_all();
}

}  // namespace

Task<IoFile> open_uncached(FileIo* io, std::string path, OpenMode mode) {
  try {
    co_return co_await io->open_direct(std::move(path), mode);
  } catch (const FileError& error) {
    if (error.error_number() != EINVAL) {
      throw;
    }
  }
  co_return IoFile();
}

std::size_t UncachedFile::block_bytes() noexcept {
  static const std::size_t bytes = std::max(
      FileIo::kDirectAlignment, static_cast<std::size_t>(std::max(::sysconf(_SC_PAGESIZE), 0L)));
  return bytes;
}

Task<> UncachedFile::open(FileIo* io, std::string path, std::uint64_t size_bytes) {
  io_ = io;
  cached_ = co_await io->open(path, OpenMode::kUpdate);
  if (size_bytes >= kWorthBytes) {
    uncached_ = co_await open_uncached(io, std::move(path), OpenMode::kUpdate);
  }
}

Task<> UncachedFile::write(std::uint64_t offset, std::span<const std::byte> bytes, CpuPool* pool) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t past = (offset + at) % kStoragePieceBytes;
    const std::size_t size = std::min(bytes.size() - at, kStoragePieceBytes - past);
    co_await write_piece(offset + at, bytes.subspan(at, size), pool);
    at += size;
  }
}

/// The block that the piece begins within, whole blocks, and the one that it ends within.
Task<> UncachedFile::write_piece(std::uint64_t offset, std::span<const std::byte> bytes,
                                 CpuPool* pool) {
  const std::size_t block = block_bytes();
  const std::size_t head = std::min((block - offset % block) % block, bytes.size());
  const std::size_t tail = (bytes.size() - head) % block;
  const std::size_t whole = bytes.size() - head - tail;
  if (!uncached_.is_open() || whole == 0) {
    co_await io_->write(cached_, offset, bytes);
    co_return;
  }
  if (head > 0) {
    co_await io_->write(cached_, offset, bytes.first(head));
  }
  co_await write_blocks(offset + head, bytes.subspan(head, whole), pool);
  if (tail > 0) {
    co_await io_->write(cached_, offset + head + whole, bytes.last(tail));
  }
}

Task<> UncachedFile::write_blocks(std::uint64_t offset, std::span<const std::byte> bytes,
                                  CpuPool* pool) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % uncached_.memory_alignment() == 0) {
    co_await io_->write(uncached_, offset, bytes);
    co_return;
  }
  HostBuffer buffer;
  if (spare_buffers_.empty()) {
    buffer = HostBuffer(kStoragePieceBytes);
  } else {
    buffer = std::move(spare_buffers_.back());
    spare_buffers_.pop_back();
  }
  co_await copy(buffer.data(), bytes, pool);
  co_await io_->write(uncached_, offset, buffer.span().first(bytes.size()));
  spare_buffers_.push_back(std::move(buffer));
}

Task<bool> UncachedFile::share(std::uint64_t offset, const IoFile* from, std::uint64_t from_offset,
                               std::uint64_t bytes, CpuPool* pool) {
  bool shared = false;
  const auto share_all = [&, this] {
    shared = FileIo::share(*from, from_offset, cached_, offset, bytes);
  };
  if (pool != nullptr) {
    co_await pool->run(share_all, "checkpoint: share");
  } else {
    co_await yield();
    share_all();
  }
  co_return shared;
}

Task<> UncachedFile::sync() { co_await io_->fsync(cached_); }

Task<> UncachedFile::close() {
  if (uncached_.is_open()) {
    co_await io_->close(std::move(uncached_));
  }
  co_await io_->close(std::move(cached_));
}

void UncachedFile::abandon() {
  uncached_ = IoFile();
  cached_ = IoFile();
}

}  // namespace tandem
