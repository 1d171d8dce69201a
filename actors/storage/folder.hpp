// actors/storage/folder.hpp — folders that appear as a whole or not at all, locks of folders, and
// the room on their disk.
//
// Invariant: whenever the process is killed or the power fails, the path of an AtomicFolder has all
// of the older folder or all of the new one. On a file system that cannot exchange two names
// (network file systems) there is a moment without either; then the older one is called
// NAME.old-<nonce>, and the next AtomicFolder of the path restores its name. Only files with one of
// our nonces in their names are removed, and links are never followed.
// Thread rule: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "actors/storage/file.hpp"

namespace tandem {

class AtomicFolder {
 public:
  /// Makes an empty folder with a temporary name beside `path`, and removes the folders that killed
  /// processes left there. If `path` is a link, it is followed. Error (`where`, the path, the
  /// system's reason) if that fails.
  AtomicFolder(const std::filesystem::path& path, std::string where);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();  // without commit(): the new folder is removed, the older one stays

  /// Returns the new folder's path until commit(). The writer of its files must sync them.
  [[nodiscard]] const std::filesystem::path& temporary() const noexcept { return temporary_; }
  /// Adds the older folder's entries that the new one lacks, except those whose name `is_replaced`:
  /// files as hard links, or as copies if the file system has none.
  void keep_others(const std::function<bool(std::string_view name)>& is_replaced);
  /// Gives the new folder its name, durably; then removes the older one.
  void commit();

 private:
  [[noreturn]] void fail(std::string_view operation, int error) const;
  void take_name();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::filesystem::path older_;  // moved aside; none where names were exchanged
  std::string where_;
  FileHandle held_;  // the new folder; its lock shows that its process lives
};

/// Removes the folders that killed AtomicFolders, and killed saves of a checkpoint of that name,
/// left beside `path`. If `path` is missing, restores the older folder's name.
void remove_abandoned(const std::filesystem::path& path);
/// Protects `folder` from other processes' remove_abandoned() while the handle lives. Returns a
/// closed handle if the file system has no locks.
[[nodiscard]] FileHandle hold_folder(const std::filesystem::path& folder);
/// Returns whether `name` is that of a file which a killed AtomicFile leaves: ".NAME.tmp-" and a
/// nonce.
[[nodiscard]] bool is_abandoned_file(std::string_view name);
/// Removes the files that killed AtomicFiles left in `folder`. Only the one process that writes
/// there may call it.
void remove_abandoned_files(const std::filesystem::path& folder);

inline constexpr std::string_view kLockName = "run.lock";

/// Locks a folder for this process while the object lives; a lock ends with its process.
class FolderLock {
 public:
  /// `holder` is the text by which other processes name this one. Throws user_error, which names
  /// the holder, if another process still has the lock after `patience`. Also throws if the lock's
  /// file is a link or a pipe, or has further hard links. If the file system has no locks, the
  /// folder is not locked.
  FolderLock(const std::filesystem::path& folder, std::string_view where, std::string_view holder,
             std::chrono::milliseconds patience = {});
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) noexcept = delete;
  ~FolderLock();

 private:
  std::filesystem::path path_;
  FileHandle file_;
};

/// Returns the bytes that a user without privileges may still write on the disk of `path`; if
/// `path` does not exist, of its nearest existing parent. UINT64_MAX if that is not known.
[[nodiscard]] std::uint64_t free_disk_bytes(const std::filesystem::path& path);
/// Returns the number of files (inodes) that may still be made there; UINT64_MAX if the file system
/// has no such limit.
[[nodiscard]] std::uint64_t free_disk_files(const std::filesystem::path& path);

}  // namespace tandem
