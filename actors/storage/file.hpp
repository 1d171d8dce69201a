// actors/storage/file.hpp — reads and writes whole files, for code that reads and writes model
// files.
//
// Invariant: a path given to AtomicFile has either its old content or everything that was appended.
// Until commit() the bytes are in a file with a temporary name, which no loader reads and which is
// removed after a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

/// An open file descriptor, closed with its owner.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int descriptor) noexcept : descriptor_(descriptor) {}
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle();

  /// Opens a regular file for reading. Error (`where`, the path, the system's reason) if that
  /// fails.
  static FileHandle open_read(const std::filesystem::path& path, std::string_view where);

  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] std::uint64_t size_bytes(const std::filesystem::path& path,
                                         std::string_view where) const;
  /// Closes the file; returns false if the system reports a failed write only now.
  bool close() noexcept;

 private:
  int descriptor_ = -1;
};

/// Reads exactly `out.size()` bytes at `offset`. Error if the file ends earlier (it was shortened)
/// or reading fails. Any thread; several may read one handle at once.
void read_exactly(const FileHandle& file, std::uint64_t offset, std::span<std::byte> out,
                  const std::filesystem::path& path, std::string_view where);

/// Returns the file's bytes. Error if it is missing, not a regular file, or larger than
/// `limit_bytes`.
std::string read_file(const std::filesystem::path& path, std::string_view where,
                      std::uint64_t limit_bytes);

/// Writes a file under a temporary name beside it; commit() gives it its own name, durably. A link
/// of that name is replaced, never followed. One thread at a time. The destructor removes the
/// temporary file if commit() was not called.
class AtomicFile {
 public:
  /// Error (user input) if a folder, a pipe or a device has the name. `expected_bytes` (0 =
  /// unknown) is reserved on disk at once, so that a full disk shows before work is spent.
  AtomicFile(std::filesystem::path path, std::string where, std::uint64_t expected_bytes = 0);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  /// Syncs the content (fsync). commit() also calls it.
  void sync();
  /// Syncs and renames the file, then syncs the folder. Call nothing afterwards.
  void commit();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  [[noreturn]] void fail(std::string_view operation, int error);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string where_;
  FileHandle file_;
  std::uint64_t written_bytes_ = 0;
  bool synced_ = false;
  bool committed_ = false;
};

/// Writes `text` with an AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view where, std::string_view text);

/// Makes the folder and its parents; Error if that fails or the folder is not writable.
void make_writable_folder(const std::filesystem::path& folder, std::string_view where);

/// Syncs a folder: makes the names in it durable.
void sync_folder(const std::filesystem::path& folder, std::string_view where);

}  // namespace tandem
