#include "actors/storage/folder.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/system/nonce.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/system/remove_tree.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kOlder = ".old-";

std::string reason(int error) { return std::generic_category().message(error); }

/// Absolute, without a slash at its end, and with what a link in its place leads to, but for an own
/// folder's.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path);
  if (!reach::is_own(path)) {
    whole = fs::weakly_canonical(whole, error);
    whole = error ? fs::absolute(path).lexically_normal() : whole;
  }
  return whole.has_filename() ? whole : whole.parent_path();
}

/// Whether `found` is "NAME" and `middle` and a nonce: a folder which a user called model.tmp-mine
/// or model.old is not taken for one of ours.
bool is_ours(std::string_view found, std::string_view name, std::string_view middle) {
  return found.starts_with(name) && found.substr(name.size()).starts_with(middle) &&
         is_nonce(found.substr(name.size() + middle.size()));
}

/// Removes leftovers of killed processes, or a folder that was replaced. An entry that stays is not
/// ours to remove, or the next one tries it again.
void remove_quietly(const fs::path& path) { static_cast<void>(remove_tree(path.string())); }

/// The names in a folder; none where it cannot be listed.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  (void)reach::list(folder, names);
  return names;
}

/// Whether a folder has that name; a link to one is none.
bool is_folder(const fs::path& path) {
  struct stat found{};
  return reach::status(path, found) == 0 && S_ISDIR(found.st_mode);
}

bool is_there(const fs::path& path) {
  struct stat found{};
  return reach::status(path, found) == 0;
}

void sync_tree(const fs::path& folder, std::string_view where) {
  for (const std::string& name : names_in(folder)) {
    if (is_folder(folder / name)) {
      sync_tree(folder / name, where);
    }
  }
  sync_folder(folder, where);
}

[[noreturn]] void throw_system_error(const fs::path& path) {
  throw fs::filesystem_error("cannot take along", path,
                             std::error_code(errno, std::generic_category()));
}

/// A copy that is on the medium.
void copy_file(const fs::path& from, const fs::path& to, std::string_view where) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  const FileHandle source = FileHandle::open_read(from, where);
  const FileHandle copy(reach::open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  std::vector<std::byte> piece(kPieceBytes);
  ssize_t got = copy.is_open() ? 1 : -1;
  while (got > 0 && (got = ::read(source.get(), piece.data(), piece.size())) > 0) {
    for (ssize_t at = 0, put = 0; at < got; at += put) {
      put = ::write(copy.get(), piece.data() + at, static_cast<std::size_t>(got - at));
      if (put < 0) {
        throw_system_error(to);
      }
    }
  }
  if (got < 0) {
    throw_system_error(from);
  }
  if (::fsync(copy.get()) != 0) {
    throw failure(ExitCode::kFailure, where, "cannot write {} to disk: {}; check the disk",
                  to.string(), reason(errno));
  }
}

/// A second name of each file and link, or a copy where the file system has none.
void take_along(const fs::path& from, const fs::path& to, const std::string& where) {
  if (is_folder(from)) {
    std::vector<std::string> names;
    if (reach::make_folder(to) != 0 || reach::list(from, names) != 0) {
      throw_system_error(from);
    }
    for (const std::string& name : names) {
      take_along(from / name, to / name, where);
    }
  } else if (reach::link(from, to) != 0) {
    if (fs::is_symlink(fs::symlink_status(from))) {
      fs::copy_symlink(from, to);
    } else {
      copy_file(from, to, where);
    }
  }
}

/// The process that locked it, in its words; empty where it says nothing.
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
  return ::fstat(file.get(), &open_one) == 0 && reach::status(path, named) == 0 &&
         open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

}  // namespace

FileHandle hold_folder(const fs::path& folder) {
  FileHandle handle(reach::open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (handle.is_open() && ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) {
    handle.close();
  }
  return handle;
}

void remove_abandoned(const fs::path& path) {
  const fs::path whole = resolved(path);
  const std::string name = whole.filename().string();
  std::vector<fs::path> older;
  bool exchanging = false;
  for (const std::string& found : names_in(whole.parent_path())) {
    const fs::path one = whole.parent_path() / found;
    if (is_ours(found, name, kTemporary) && is_folder(one)) {
      const FileHandle held = hold_folder(one);  // not, while its process lives
      exchanging = exchanging || !held.is_open();
      if (held.is_open()) {
        remove_quietly(one);
      }
    } else if (is_ours(found, name, kOlder) && is_folder(one)) {
      older.push_back(one);
    }
  }
  for (const fs::path& one : exchanging ? std::vector<fs::path>() : older) {
    if (is_there(whole)) {
      remove_quietly(one);
    } else {
      (void)reach::rename(one, whole);
    }
  }
}

bool is_abandoned_file(std::string_view name) {
  const std::size_t at = name.rfind(kTemporary);
  return name.starts_with('.') && at != std::string_view::npos && at > 1 &&
         is_nonce(name.substr(at + kTemporary.size()));
}

void remove_abandoned_files(const fs::path& folder) {
  for (const std::string& name : names_in(folder)) {
    struct stat found{};
    if (is_abandoned_file(name) && reach::status(folder / name, found) == 0 &&
        S_ISREG(found.st_mode)) {
      remove_quietly(folder / name);
    }
  }
}

AtomicFolder::AtomicFolder(const fs::path& path, std::string where)
    : path_(resolved(path)), where_(std::move(where)) {
  make_writable_folder(path_.parent_path(), where_);
  remove_abandoned(path_);
  temporary_ = fmt::format("{}{}{}", path_.string(), kTemporary, fresh_nonce());
  if (reach::make_folder(temporary_) != 0) {
    const int number = errno;
    const fs::path tried = std::exchange(temporary_, {});
    const bool no_room = number == ENOSPC || number == EDQUOT || number == EIO;
    throw failure(no_room ? ExitCode::kFailure : ExitCode::kUserInput, where_,
                  "cannot make the folder {}: {}; choose another output folder", tried.string(),
                  reason(number));
  }
  held_ = hold_folder(temporary_);
}

AtomicFolder::~AtomicFolder() {
  if (!temporary_.empty()) {
    remove_quietly(temporary_);
  }
}

void AtomicFolder::fail(std::string_view operation, int error) const {
  throw failure(ExitCode::kFailure, where_,
                "cannot {} {}: {}; what was there before is as it was (choose another folder, or "
                "mend the disk)",
                operation, path_.string(), reason(error));
}

void AtomicFolder::keep_others(const std::function<bool(std::string_view name)>& is_replaced) {
  if (!is_folder(path_)) {
    return;
  }
  try {
    for (const std::string& name : names_in(path_)) {
      if (!is_replaced(name) && !is_there(temporary_ / name)) {
        take_along(path_ / name, temporary_ / name, where_);
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
  remove_quietly(std::exchange(temporary_, {}));  // what is left of it, the next one removes
  if (!older_.empty()) {
    remove_quietly(std::exchange(older_, {}));
  }
}

void AtomicFolder::take_name() {
  if (reach::rename(temporary_, path_) == 0) {
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) {
    fail("name the folder", errno);
  }
  if (reach::rename(temporary_, path_, RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    fail("name the folder", errno);
  }
  const std::string older = fmt::format("{}{}{}", path_.string(), kOlder, fresh_nonce());
  if (reach::rename(path_, older) != 0) {
    fail("move aside the folder", errno);
  }
  if (reach::rename(temporary_, path_) != 0) {
    const int error = errno;
    (void)reach::rename(older, path_);
    fail("name the folder", error);
  }
  older_ = older;
}

FolderLock::FolderLock(const fs::path& folder, std::string_view where, std::string_view holder,
                       std::chrono::milliseconds patience)
    : path_(folder / kLockName) {
  const auto until = std::chrono::steady_clock::now() + patience;
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const auto no_lock = [&](std::string_view reason) {
    return user_error(where, "{} is no lock of a run: {}; move it away, or give another folder",
                      path_.string(), reason);
  };
  struct stat opened{};
  do {  // again, where the process that held it has just removed the file
    file_ = FileHandle(reach::open(path_, kFlags, 0600));  // another user could hold the lock
    if (!file_.is_open() && errno == EACCES && is_there(path_)) {
      throw user_error(where,
                       "{} is another user's: a run of theirs is in {}, or was killed there; wait "
                       "for it, or remove the file",
                       path_.string(), folder.string());
    }
    if (!file_.is_open() && (errno == ELOOP || errno == EISDIR)) {
      throw no_lock(errno == ELOOP ? "it is a link" : "it is a folder");
    }
    if (!file_.is_open()) {
      throw failure(errno == ENOSPC || errno == EIO ? ExitCode::kFailure : ExitCode::kUserInput,
                    where, "cannot create {}: {}; give a folder that can be written",
                    path_.string(), reason(errno));
    }
    if (::fstat(file_.get(), &opened) != 0 || !S_ISREG(opened.st_mode) || opened.st_nlink > 1) {
      file_.close();
      throw no_lock(S_ISREG(opened.st_mode) ? "it is a file of another name, too"
                                            : "it is no regular file");
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
    (void)reach::remove(path_);
  }
}

namespace {

/// The figures of the disk that holds `path`, or will.
std::optional<struct statvfs> disk_of(const fs::path& path) {
  fs::path asked = resolved(path);
  struct statvfs disk{};
  while (::statvfs(asked.c_str(), &disk) != 0) {
    if (errno != ENOENT || !asked.has_relative_path()) {
      return std::nullopt;
    }
    asked = asked.parent_path();
  }
  return disk;
}

}  // namespace

std::uint64_t free_disk_bytes(const fs::path& path) {
  const std::optional<struct statvfs> disk = disk_of(path);
  return disk ? std::uint64_t{disk->f_bavail} * disk->f_frsize : UINT64_MAX;
}

std::uint64_t free_disk_files(const fs::path& path) {
  const std::optional<struct statvfs> disk = disk_of(path);
  return disk && disk->f_files > 0 ? std::uint64_t{disk->f_favail} : UINT64_MAX;
}

}  // namespace tandem
