// actors/storage/mapped_file.hpp — maps a file into memory, so that its bytes are read without a
// copy, at the speed of the page cache.
//
// If another program shortens a mapped file, or its disk fails, an access ends the program
// (SIGBUS).
// Invariant: inside read() and survives() such an access does not end the program. They return
// false, and the caller asks the descriptor for the reason. The first call sets the process's
// handler of SIGBUS, which passes on every signal that such an access did not cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "actors/storage/file.hpp"

namespace tandem {

/// A read-only view of a whole file, unmapped with its owner. All functions: any thread, several at
/// once.
class MappedFile {
 public:
  MappedFile() = default;
  /// Error (`where`, the path, the system's reason) if the file cannot be mapped.
  MappedFile(const FileHandle& file, std::uint64_t size_bytes, const std::filesystem::path& path,
             std::string_view where);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_bytes_}; }

  /// Calls copy(span) with the bytes [offset, offset + size), which the system is asked to fetch
  /// all at once. Afterwards their pages stay in the page cache, but no longer count as memory of
  /// this process. Returns false if the bytes could not be read; then the output of copy is
  /// invalid. Within its last page a shortened file reads as zeros, so compare its size afterwards.
  /// The rules of survives() apply to copy, which must only copy.
  template <class Copy>
  [[nodiscard]] bool read(std::uint64_t offset, std::uint64_t size, const Copy& copy) const {
    const std::span<const std::byte> part = bytes().subspan(offset, size);
    fetch(part);
    const bool whole = survives([&] { copy(part); });
    release(part);
    return whole;
  }

  /// Calls access(). Returns false if access() touched mapped bytes that could not be read. In that
  /// case a jump that skips destructors leaves access(), so it must own nothing, lock nothing and
  /// not throw.
  template <class Access>
  [[nodiscard]] static bool survives(const Access& access) {
    return call_guarded([](const void* it) { (*static_cast<const Access*>(it))(); }, &access);
  }

 private:
  static bool call_guarded(void (*access)(const void*), const void* argument);
  static void fetch(std::span<const std::byte> part) noexcept;
  static void release(std::span<const std::byte> part) noexcept;

  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace tandem
