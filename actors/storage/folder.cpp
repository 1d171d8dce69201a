#include "actors/storage/folder.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kOlder = ".old";
constexpr const char* kLockName = "run.lock";

std::string reason(int error) { return std::generic_category().message(error); }

/// Absolute, without a slash at its end, and with what a link in its place leads to.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  whole = error ? fs::absolute(path).lexically_normal() : whole;
  return whole.has_filename() ? whole : whole.parent_path();
}

/// Whether that is what temporary names end in: process ids, counts and nonces, so that a folder
/// which a user called model.tmp-mine is not taken for one.
bool is_nonce(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

void sync_tree(const fs::path& folder, std::string_view where) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) {
      sync_tree(entry.path(), where);
    }
  }
  sync_folder(folder, where);
}

/// A hard link, or a copy that is on the medium.
void take_along(const fs::path& from, const fs::path& to, const std::string& where) {
  const fs::file_status status = fs::symlink_status(from);
  if (fs::is_directory(status)) {
    fs::create_directory(to);
    for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
      take_along(entry.path(), to / entry.path().filename(), where);
    }
  } else if (fs::is_symlink(status)) {
    fs::copy_symlink(from, to);
  } else if (std::error_code error; fs::create_hard_link(from, to, error), error) {
    fs::copy_file(from, to);
    const FileHandle file(::open(to.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open() || ::fsync(file.get()) != 0) {
      throw failure(ExitCode::kFailure, where, "cannot write {} to disk: {}; check the disk",
                    to.string(), reason(errno));
    }
  }
}

/// Of the process that locked it; empty where it says nothing.
std::string holder_of(const FileHandle& file) {
  std::array<char, 256> text{};
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  std::string holder(text.data(), static_cast<std::size_t>(std::max<ssize_t>(0, got)));
  return holder.substr(0, holder.find('\n'));
}

/// Whether the file of the handle is still the one of that name.
bool has_name(const FileHandle& file, const fs::path& path) {
  struct stat open_one{};
  struct stat named{};
  return ::fstat(file.get(), &open_one) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

}  // namespace

FileHandle hold_folder(const fs::path& folder) {
  FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (handle.is_open() && ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) {
    handle.close();
  }
  return handle;
}

void remove_abandoned(const fs::path& path) {
  const fs::path whole = resolved(path);
  const std::string name = whole.filename().string();
  std::error_code error;
  const fs::path older = whole.string() + std::string(kOlder);
  const bool has_older = fs::is_directory(fs::symlink_status(older, error));
  std::vector<fs::path> abandoned;
  bool exchanging = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(whole.parent_path(), error)) {
    const std::string found = entry.path().filename().string();
    if (found.starts_with(name + std::string(kTemporary)) &&
        is_nonce(std::string_view(found).substr(name.size() + kTemporary.size()))) {
      const FileHandle held = hold_folder(entry.path());  // not, while its process lives
      exchanging = exchanging || !held.is_open();
      if (held.is_open()) {
        fs::remove_all(entry.path(), error);
      }
    }
  }
  if (has_older && !exchanging && !fs::exists(fs::symlink_status(whole, error))) {
    fs::rename(older, whole, error);
  }
}

bool is_abandoned_file(std::string_view name) {
  const std::size_t at = name.rfind(kTemporary);
  return name.starts_with('.') && at != std::string_view::npos && at > 1 &&
         is_nonce(name.substr(at + kTemporary.size()));
}

void remove_abandoned_files(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (is_abandoned_file(entry.path().filename().string()) &&
        fs::is_regular_file(entry.symlink_status(ignored))) {
      fs::remove(entry.path(), ignored);
    }
  }
}

AtomicFolder::AtomicFolder(const fs::path& path, std::string where)
    : path_(resolved(path)), where_(std::move(where)) {
  make_writable_folder(path_.parent_path(), where_);
  remove_abandoned(path_);
  // A process id alone comes again, in containers after each start.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  temporary_ = fmt::format("{}{}{}-{:x}", path_.string(), kTemporary, ::getpid(), now);
  std::error_code error;
  if (!fs::create_directory(temporary_, error)) {
    const fs::path tried = std::exchange(temporary_, {});
    const int number = error ? error.value() : EEXIST;
    const bool no_room = number == ENOSPC || number == EDQUOT || number == EIO;
    throw failure(no_room ? ExitCode::kFailure : ExitCode::kUserInput, where_,
                  "cannot make the folder {}: {}; choose another output folder", tried.string(),
                  reason(number));
  }
  held_ = hold_folder(temporary_);
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) {
    fs::remove_all(temporary_, ignored);
  }
}

void AtomicFolder::fail(std::string_view operation, int error) const {
  throw failure(ExitCode::kFailure, where_,
                "cannot {} {}: {}; what was there before is as it was (choose another folder, or "
                "mend the disk)",
                operation, path_.string(), reason(error));
}

void AtomicFolder::keep_others(const std::function<bool(std::string_view name)>& is_replaced) {
  std::error_code error;
  if (!fs::is_directory(path_, error)) {
    return;
  }
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      const fs::path name = entry.path().filename();
      if (!is_replaced(name.string()) && !fs::exists(fs::symlink_status(temporary_ / name))) {
        take_along(entry.path(), temporary_ / name, where_);
      }
    }
  } catch (const fs::filesystem_error& failed) {
    fail(fmt::format("take along {} of", failed.path1().filename().string()),
         failed.code().value());
  }
}

void AtomicFolder::commit() {
  sync_tree(temporary_, where_);
  take_name();
  sync_folder(path_.parent_path(), where_);
  std::error_code ignored;  // what is left of it, the next one removes
  fs::remove_all(std::exchange(temporary_, {}), ignored);
  fs::remove_all(path_.string() + std::string(kOlder), ignored);
}

void AtomicFolder::take_name() {
  if (::rename(temporary_.c_str(), path_.c_str()) == 0) {
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) {
    fail("name the folder", errno);
  }
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    fail("name the folder", errno);
  }
  const std::string older = path_.string() + std::string(kOlder);
  std::error_code ignored;
  fs::remove_all(older, ignored);
  if (::rename(path_.c_str(), older.c_str()) != 0) {
    fail("move aside the folder", errno);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::rename(older.c_str(), path_.c_str());
    fail("name the folder", error);
  }
}

FolderLock::FolderLock(const fs::path& folder, std::string_view where, std::string_view holder,
                       std::chrono::milliseconds patience)
    : path_(folder / kLockName) {
  const auto until = std::chrono::steady_clock::now() + patience;
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  do {  // again, where the process that held it has just removed the file
    file_ = FileHandle(::open(path_.c_str(), kFlags, 0600));  // another user could hold the lock
    if (!file_.is_open() && errno == EACCES && fs::exists(path_)) {
      throw user_error(where,
                       "{} is another user's: a run of theirs is in {}, or was killed there; wait "
                       "for it, or remove the file",
                       path_.string(), folder.string());
    }
    if (!file_.is_open()) {
      throw failure(errno == ENOSPC || errno == EIO ? ExitCode::kFailure : ExitCode::kUserInput,
                    where, "cannot create {}: {}; give a folder that can be written",
                    path_.string(), reason(errno));
    }
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      if (errno != EWOULDBLOCK) {
        return;  // the file system has no locks
      }
      const std::string other = holder_of(file_);
      throw user_error(where, "{} is in use by {}; wait for it, or give another folder",
                       folder.string(), other.empty() ? "another run" : other);
    }
  } while (!has_name(file_, path_));
  const std::string text = std::string(holder) + "\n";
  // The text is for people: without it the lock holds as well.
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return;
  }
}

FolderLock::~FolderLock() {
  if (file_.is_open() && has_name(file_, path_)) {
    ::unlink(path_.c_str());
  }
}

std::uint64_t free_disk_bytes(const fs::path& path) {
  fs::path asked = resolved(path);
  struct statvfs disk{};
  while (::statvfs(asked.c_str(), &disk) != 0) {
    if (errno != ENOENT || !asked.has_relative_path()) {
      return UINT64_MAX;
    }
    asked = asked.parent_path();
  }
  return std::uint64_t{disk.f_bavail} * disk.f_frsize;
}

}  // namespace tandem
