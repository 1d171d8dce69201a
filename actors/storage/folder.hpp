// actors/storage/folder.hpp — whole folders: made at once or not at all, held by one process, and
// the room on their disk.
//
// Invariant: whenever the process or the power ends, the path of an AtomicFolder holds all of the
// older folder or all of the new one. On a file system that cannot exchange two names (network file
// systems) there is a moment without either; the older one then lies beside as NAME.old-<nonce>,
// and the next AtomicFolder of the path puts it back. Nothing is removed but what has one of our
// own nonces in its name, and links are never followed. Thread rule: one thread at a time.
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
  /// Makes an empty folder beside `path`, of a name of its own, and removes those that killed
  /// processes left there. A link in the place of `path` is followed. Error (`where`, the path, the
  /// system's reason) where that is impossible.
  AtomicFolder(const std::filesystem::path& path, std::string where);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();  // without commit(): the new folder goes, the older one stays

  /// The new folder, until commit(). Its files must be synced by their writer.
  [[nodiscard]] const std::filesystem::path& temporary() const noexcept { return temporary_; }
  /// Takes along what the older folder holds and the new one does not, but for the entries whose
  /// name `is_replaced`: files become hard links, or copies where the file system has none.
  void keep_others(const std::function<bool(std::string_view name)>& is_replaced);
  /// The commit point: the new folder takes its name, durably; then the older one is removed.
  void commit();

 private:
  [[noreturn]] void fail(std::string_view operation, int error) const;
  void take_name();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::filesystem::path older_;  // moved aside; none where names were exchanged
  std::string where_;
  FileHandle held_;  // the new folder, locked: that of a living process
};

/// Removes the folders that killed AtomicFolders, and killed saves of a checkpoint of that name,
/// left beside `path`, and puts an older one back whose place is empty.
void remove_abandoned(const std::filesystem::path& path);
/// Keeps remove_abandoned() of other processes from `folder` while the handle lives. Closed where
/// the file system has no locks.
[[nodiscard]] FileHandle hold_folder(const std::filesystem::path& folder);
/// Whether a file of that name is one that a killed AtomicFile leaves: ".NAME.tmp-" and a nonce.
[[nodiscard]] bool is_abandoned_file(std::string_view name);
/// Removes what killed AtomicFiles left in `folder`. Only for the one process that writes there.
void remove_abandoned_files(const std::filesystem::path& folder);

inline constexpr std::string_view kLockName = "run.lock";

/// A folder is this process's until the object goes: no lock outlives its process.
class FolderLock {
 public:
  /// `holder`: who other processes are told holds it. Throws user_error, naming the holder, where
  /// another process does, and still does after `patience`; also where the lock's file is a link, a
  /// pipe or a file with another name. Where the file system has no locks it is not locked.
  FolderLock(const std::filesystem::path& folder, std::string_view where, std::string_view holder,
             std::chrono::milliseconds patience = {});
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) noexcept = delete;
  ~FolderLock();

 private:
  std::filesystem::path path_;
  FileHandle file_;
};

/// Bytes that a user without privileges may still write on the disk that holds `path`, or will hold
/// it: the nearest of its parents that is there is asked. UINT64_MAX where that is not known.
[[nodiscard]] std::uint64_t free_disk_bytes(const std::filesystem::path& path);
/// The files that may still be made there, likewise (inodes); UINT64_MAX where a file system has no
/// such limit.
[[nodiscard]] std::uint64_t free_disk_files(const std::filesystem::path& path);

}  // namespace tandem
