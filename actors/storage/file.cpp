#include "actors/storage/file.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/system/nonce.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

std::string reason(int error) {
  return error == ELOOP ? "a link is in its place or on the way to it, and is not followed here"
                        : std::generic_category().message(error);
}

// Linux moves at most 2^31 - 4096 bytes per call.
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  return folder_of(path) / fmt::format(".{}.tmp-{}", path.filename().string(), fresh_nonce());
}

}  // namespace

FileHandle::FileHandle(FileHandle&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

FileHandle::~FileHandle() { close(); }

bool FileHandle::close() noexcept {
  return descriptor_ < 0 || ::close(std::exchange(descriptor_, -1)) == 0;
}

FileHandle FileHandle::open_read(const std::filesystem::path& path, std::string_view where) {
  // O_NONBLOCK: a pipe in the file's place must not hang us; regular files do not care.
  FileHandle file(reach::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    throw user_error(where, "cannot open {}: {}; check the path and its permissions", path.string(),
                     reason(errno));
  }
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw user_error(where, "{} is not a regular file; give the path of a file", path.string());
  }
  return file;
}

std::uint64_t FileHandle::size_bytes(const std::filesystem::path& path,
                                     std::string_view where) const {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) {
    throw user_error(where, "cannot ask for the size of {}: {}; check the file system",
                     path.string(), reason(errno));
  }
  return static_cast<std::uint64_t>(status.st_size);
}

void read_exactly(const FileHandle& file, std::uint64_t offset, std::span<std::byte> out,
                  const std::filesystem::path& path, std::string_view where) {
  while (!out.empty()) {
    const ssize_t got = ::pread(file.get(), out.data(), std::min(out.size(), kMaxTransferBytes),
                                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw user_error(where, "cannot read {} at byte {}: {}; check the disk", path.string(),
                       offset, reason(errno));
    }
    if (got == 0) {
      throw user_error(where,
                       "{} ends at byte {}, {} bytes are missing (it was shortened while in use); "
                       "copy the file again",
                       path.string(), offset, out.size());
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::string read_file(const std::filesystem::path& path, std::string_view where,
                      std::uint64_t limit_bytes) {
  const FileHandle file = FileHandle::open_read(path, where);
  const std::uint64_t size = file.size_bytes(path, where);
  if (size > limit_bytes) {
    throw user_error(where, "{} has {} bytes, the limit is {}; this is not the expected file",
                     path.string(), size, limit_bytes);
  }
  std::string text(size, '\0');
  read_exactly(file, 0, std::as_writable_bytes(std::span(text)), path, where);
  return text;
}

AtomicFile::AtomicFile(std::filesystem::path path, std::string where, std::uint64_t expected_bytes)
    : path_(std::move(path)), temporary_(temporary_name(path_)), where_(std::move(where)) {
  struct stat there{};
  if (reach::status(path_, there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode)) {
    temporary_.clear();
    throw user_error(where_, "{} is no regular file; move it away, or give another folder",
                     path_.string());
  }
  file_ = FileHandle(reach::open(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.is_open()) {
    const int error = errno;
    temporary_.clear();
    if (error == ENOSPC || error == EDQUOT) {
      fail("create", error);
    }
    throw user_error(where_, "cannot create {}: {}; choose a folder that you may write to",
                     path_.string(), reason(error));
  }
  // File systems that cannot reserve say so; then the writes will tell.
  if (expected_bytes > 0 &&
      ::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(expected_bytes)) != 0) {
    const int error = errno;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
      (void)reach::remove(temporary_);
      fail("reserve space for", error);
    }
  }
}

AtomicFile::~AtomicFile() {
  if (!committed_ && !temporary_.empty()) {
    file_.close();
    (void)reach::remove(temporary_);
  }
}

void AtomicFile::fail(std::string_view operation, int error) {
  throw failure(ExitCode::kFailure, where_,
                "cannot {} {}: {} after {} bytes; free space on its disk and run again (the "
                "unfinished file was removed)",
                operation, path_.string(), reason(error), written_bytes_);
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  synced_ = false;
  while (!bytes.empty()) {
    const ssize_t put =
        ::write(file_.get(), bytes.data(), std::min(bytes.size(), kMaxTransferBytes));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      fail("write", put < 0 ? errno : EIO);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    written_bytes_ += static_cast<std::uint64_t>(put);
  }
}

void AtomicFile::append(std::string_view text) {
  append(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::sync() {
  // Never retried: after a failed fsync the kernel has dropped the pages.
  if (!synced_ && ::fsync(file_.get()) != 0) {
    fail("write to disk", errno);
  }
  synced_ = true;
}

void AtomicFile::commit() {
  sync();
  if (!file_.close()) {
    fail("close", errno);
  }
  if (reach::rename(temporary_, path_) != 0) {
    fail("rename to", errno);
  }
  committed_ = true;
  sync_folder(folder_of(path_), where_);
}

void write_file(const std::filesystem::path& path, std::string_view where, std::string_view text) {
  AtomicFile file(path, std::string(where), text.size());
  file.append(text);
  file.commit();
}

void make_writable_folder(const std::filesystem::path& folder, std::string_view where) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder)) {
    throw user_error(where, "cannot make the folder {}: {}; choose another output folder",
                     folder.string(), error ? error.message() : "a file is in its place");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw user_error(where, "cannot write into {}: {}; choose another output folder",
                     folder.string(), reason(errno));
  }
}

void sync_folder(const std::filesystem::path& folder, std::string_view where) {
  FileHandle handle(reach::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network file systems refuse fsync on a folder (EINVAL); there is nothing better to call.
  if (!handle.is_open() || (::fsync(handle.get()) != 0 && errno != EINVAL)) {
    throw failure(ExitCode::kFailure, where, "cannot write the folder {} to disk: {}; check it",
                  folder.string(), reason(errno));
  }
}

}  // namespace tandem
