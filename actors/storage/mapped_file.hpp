// actors/storage/mapped_file.hpp — a file's bytes as memory: read without a copy, as quickly as
// the page cache gives them.
//
// A mapped file that another program shortens, or whose disk fails, ends a program on access
// (SIGBUS).
// Invariant: inside read() and survives() it does not; they say so instead, and the caller asks the
// descriptor for the reason. The first of them sets the process's handler of SIGBUS, which hands on
// every signal that is not theirs.
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
  /// Error (`where`, the path, the system's reason) if there is no address space for it.
  MappedFile(const FileHandle& file, std::uint64_t size_bytes, const std::filesystem::path& path,
             std::string_view where);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_bytes_}; }

  /// copy(span) of bytes [offset, offset + size), which the system is asked to fetch all at once.
  /// Afterwards their pages lie in its cache as before, but no longer count as memory of this
  /// process. False: they could not be had, and what copy wrote is void. Within its last page a
  /// shortened file reads as zeros: compare its size afterwards. As survives() says, copy only
  /// copies.
  template <class Copy>
  [[nodiscard]] bool read(std::uint64_t offset, std::uint64_t size, const Copy& copy) const {
    const std::span<const std::byte> part = bytes().subspan(offset, size);
    fetch(part);
    const bool whole = survives([&] { copy(part); });
    release(part);
    return whole;
  }

  /// Calls access(); false if it met mapped bytes that could not be had. It is left by a jump then,
  /// past destructors: it owns nothing, locks nothing and does not throw.
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
