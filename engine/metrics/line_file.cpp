#include "engine/metrics/line_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/storage/file.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr mode_t kMode = 0644;

/// The remedy that the user has, for the reasons that have one.
std::string_view remedy(int reason) {
  switch (reason) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or give another output folder";
    default:
      return "give an output folder that can be written";
  }
}

Error write_error(const std::string& path, int reason) {
  return failure(ExitCode::kFailure, "metrics", "cannot write {}: {}; {}", path,
                 std::strerror(reason), remedy(reason));
}

Error open_error(const std::string& path, int reason) {
  return user_error("metrics", "cannot create {}: {}; {}", path, std::strerror(reason),
                    remedy(reason));
}

/// Writes everything, or returns the system's reason.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return errno;
    }
    bytes.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

void make_output_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    throw open_error(path, error ? error.value() : ENOTDIR);
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) {
    throw open_error(path, errno);
  }
}

LineFile::LineFile(std::string path, bool append) : path_(std::move(path)), replaces_(!append) {
  open();
  struct stat opened{};
  if (::fstat(fd_, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_nlink > 1) {
    // A backup made of hard links, say: this run's lines are none of that file's.
    ::close(std::exchange(fd_, -1));
    write_file(path_, "metrics", append ? read_file(path_, "metrics", UINT64_MAX) : "");
    open();
  }
}

void LineFile::open() {
  // O_NONBLOCK: a pipe in the file's place must not hang us.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  fd_ = reach::open(path_, kFlags, kMode);
  struct stat opened{};
  if (fd_ >= 0 && ::fstat(fd_, &opened) == 0 && S_ISFIFO(opened.st_mode)) {
    ::close(std::exchange(fd_, -1));
    errno = ENXIO;
  }
  if (fd_ < 0) {
    throw errno == ENXIO ? user_error("metrics",
                                      "{} is no regular file; move it away, or give "
                                      "another output folder",
                                      path_)
                         : open_error(path_, errno);
  }
}

LineFile::~LineFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void LineFile::append(std::string_view record) {
  // A device has nothing to cut (EINVAL).
  if (replaces_ && ::ftruncate(fd_, 0) != 0 && errno != EINVAL) {
    throw write_error(path_, errno);
  }
  replaces_ = false;
  const off_t whole = ::lseek(fd_, 0, SEEK_END);
  if (const int reason = write_all(fd_, record); reason != 0) {
    // A device such as a pipe cannot be cut; a file on a full disk can.
    if (whole >= 0 && ::ftruncate(fd_, whole) != 0) {
      throw failure(ExitCode::kFailure, "metrics", "cannot write {}: {}, and its last line is cut",
                    path_, std::strerror(reason));
    }
    throw write_error(path_, reason);
  }
}

void LineFile::close() {
  const int fd = std::exchange(fd_, -1);
  struct stat opened{};
  struct stat named{};
  const bool in_place = ::fstat(fd, &opened) == 0 && reach::status(path_, named) == 0 &&
                        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  int reason = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;  // EINVAL: a device
  reason = ::close(fd) == 0 || reason != 0 ? reason : errno;
  if (reason != 0) {
    throw write_error(path_, reason);
  }
  if (!in_place) {
    throw failure(ExitCode::kFailure, "metrics",
                  "{} was removed or moved while the run wrote to it; leave a run its folder",
                  path_);
  }
}

void LineFile::append_line(std::string_view line) {
  line_.assign(line);
  line_ += '\n';
  append(line_);
}

}  // namespace tandem
