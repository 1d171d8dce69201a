#include "actors/storage/hash_file.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "runtime/sleep.hpp"
#include "runtime/when_all.hpp"

namespace tandem {
namespace {

Task<> read_piece(FileIo* io, const IoFile* file, std::uint64_t offset, std::span<std::byte> into) {
  if (co_await io->read(*file, offset, into) != into.size()) {
    throw failure(ExitCode::kFailure, "checkpoint",
                  "{} ends within the {} bytes at byte {}; it was shortened while in use",
                  file->path(), into.size(), offset);
  }
}

}  // namespace

Task<> add_to_hash(FileHasher* hasher, std::span<const std::byte> bytes, CpuPool* pool) {
  if (pool != nullptr) {
    co_await pool->run([hasher, bytes] { hasher->add(bytes); });
    co_return;
  }
  co_await yield();  // what was started before goes to the kernel meanwhile
  hasher->add(bytes);
}

Task<ManifestFile> hash_file(FileIo* io, std::string path, ManifestFile file, CpuPool* pool) {
  const std::uint64_t size = file.size_bytes;
  FileHasher hasher(std::move(file));
  IoFile open_file = co_await io->open(path, OpenMode::kRead);
  std::array<std::vector<std::byte>, 2> buffers;
  for (auto& buffer : buffers) {
    buffer.resize(std::min<std::uint64_t>(size, kStoragePieceBytes));
  }
  std::span<std::byte> read = std::span(buffers[0]);
  if (!read.empty()) {
    co_await read_piece(io, &open_file, 0, read);
  }
  for (std::uint64_t end = read.size(); !read.empty(); std::swap(buffers[0], buffers[1])) {
    const auto next =
        std::span(buffers[1]).first(std::min<std::uint64_t>(size - end, kStoragePieceBytes));
    co_await when_all(read_piece(io, &open_file, end, next), add_to_hash(&hasher, read, pool));
    end += next.size();
    read = next;
  }
  co_await io->close(std::move(open_file));
  co_return hasher.result();
}

}  // namespace tandem
