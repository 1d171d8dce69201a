#include "runtime/io/file_io.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/io/thread_files.hpp"
#include "runtime/io/uring_files.hpp"

namespace tandem {
namespace {

using Kind = FileRequest::Kind;

// FileError's number for a pipe or a device that has a file's name.
constexpr int kNotRegular = EMEDIUMTYPE;

// Linux transfers no more than 2 GiB - 4 KiB at a time.
constexpr std::size_t kCallBytesMax = std::size_t{1} << 30;

void check_alignment(const char* verb, const IoFile& file, const void* buffer, std::size_t bytes,
                     std::uint64_t offset) {
  if (!file.is_direct()) {
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(buffer);
  if ((bytes | offset) % FileIo::kDirectAlignment != 0 || address % file.memory_alignment() != 0) {
    throw failure(ExitCode::kFailure, "file",
                  "cannot {} {} at byte {} ({} bytes) past the page cache: offset and size must be "
                  "multiples of {}, the buffer's address of {}; align them, or open the file "
                  "without open_direct",
                  verb, file.path(), offset, bytes, FileIo::kDirectAlignment,
                  file.memory_alignment());
  }
}

/// Older kernels do not say.
std::size_t memory_alignment_of(int descriptor) noexcept {
  struct statx told{};
  const bool tells = ::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &told) == 0 &&
                     (told.stx_mask & STATX_DIOALIGN) != 0 && told.stx_dio_mem_align != 0;
  return tells ? std::min<std::size_t>(told.stx_dio_mem_align, FileIo::kDirectAlignment)
               : FileIo::kDirectAlignment;
}

}  // namespace

OpenFile::~OpenFile() {
  if (descriptor < 0) {
    return;
  }
  if (owner != nullptr) {
    owner->drop(descriptor);
  } else {
    ::close(descriptor);
  }
}

IoFile::IoFile(int descriptor, bool direct, FileBackend* owner, std::string path)
    : file_(std::make_shared<OpenFile>(descriptor, owner, std::move(path))) {
  if (direct) {
    memory_alignment_ =
        owner == nullptr ? memory_alignment_of(descriptor) : FileIo::kDirectAlignment;
  }
}

/// A file that has to be a regular one was opened without waiting (open_flags), which such a file
/// does not need any more.
void IoFile::check(OpenMode mode) const {
  if (file_->owner != nullptr || (mode != OpenMode::kReadFile && mode != OpenMode::kUpdate)) {
    return;
  }
  struct stat status{};
  const int error = ::fstat(file_->descriptor, &status) != 0 ? errno
                    : S_ISDIR(status.st_mode)                ? EISDIR
                    : S_ISREG(status.st_mode)                ? 0
                                                             : kNotRegular;
  if (error != 0) {
    throw FileError(fmt::format("[file] cannot open {}: {}", file_->path,
                                error == kNotRegular ? "it is no regular file"
                                                     : std::generic_category().message(error)),
                    error);
  }
  if (const int flags = ::fcntl(file_->descriptor, F_GETFL); flags >= 0) {
    static_cast<void>(::fcntl(file_->descriptor, F_SETFL, flags & ~O_NONBLOCK));
  }
}

const std::string& IoFile::path() const noexcept {
  static const std::string none;
  return file_ != nullptr ? file_->path : none;
}

FileIo::FileIo(EventLoop& loop, Options options)
    : FileIo(loop, std::unique_ptr<FileBackend>(), options) {
  backend_ = make_backend(loop, options, &why_);
}

FileIo::FileIo(EventLoop& loop, std::unique_ptr<FileBackend> backend, Options options)
    : loop_(loop),
      call_bytes_max_(std::clamp(options.call_bytes_max, kDirectAlignment, kCallBytesMax)),
      backend_(std::move(backend)),
      why_("given") {}

FileIo::Choice FileIo::choose() {
  const detail::UringSupport& support = detail::uring_support();
  return {.uring = support.usable, .why = support.what};
}

std::unique_ptr<FileBackend> FileIo::make_backend(EventLoop& loop, const Options& options,
                                                  std::string* why) {
  detail::ThreadFiles::check_threads(options.threads, options.name);
  if (options.ring_entries == 0 && options.backend != Backend::kThreads) {
    throw user_error("io", "{}: a ring of 0 entries; give it one at least", options.name);
  }
  const auto uring = [&] {
    return detail::make_uring_files(
        loop, {.entries = options.ring_entries, .threads = options.threads, .name = options.name});
  };
  const auto say = [why](std::string text) {
    if (why != nullptr) {
      *why = std::move(text);
    }
  };
  say(options.backend == Backend::kAuto ? choose().why : "asked for");
  if (options.backend == Backend::kUring) {
    return uring();
  }
  if (options.backend == Backend::kAuto && choose().uring) {
    try {
      return uring();
    } catch (const Error& error) {  // locked memory or descriptors that other rings hold
      say(error.what());
    }
  }
  return std::make_unique<detail::ThreadFiles>(loop, options.threads, options.name);
}

FileIo::~FileIo() = default;

bool FileIo::share(const IoFile& from, std::uint64_t from_offset, const IoFile& into,
                   std::uint64_t offset, std::uint64_t bytes) {
  if (!from.is_open() || !into.is_open() || from.file_->owner != nullptr ||
      into.file_->owner != nullptr) {
    return false;  // not the kernel's
  }
  file_clone_range range{.src_fd = from.descriptor(),
                         .src_offset = from_offset,
                         .src_length = bytes,
                         .dest_offset = offset};
  // Whatever else keeps the kernel from it (the file system, its room or a quota, the files, blocks
  // that are on their way): a copy may do, and says what is wrong if not.
  int result = 0;
  do {
    result = ::ioctl(into.descriptor(), FICLONERANGE, &range);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

FileRequest FileIo::on_file(Kind kind, const IoFile& file) const noexcept {
  FileRequest request{.kind = kind};
  request.path_of_file = &file.path();
  request.descriptor = file.descriptor();
  request.file = file.file_;
  request.direct = file.is_direct();
  return request;
}

FileIo::Awaiter<IoFile> FileIo::open(std::string path, OpenMode mode, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kOpen, .path = std::move(path), .mode = mode}, stop};
}

FileIo::Awaiter<IoFile> FileIo::open_direct(std::string path, OpenMode mode, StopToken stop) {
  return {*this,
          FileRequest{.kind = Kind::kOpen, .path = std::move(path), .mode = mode, .direct = true},
          stop};
}

FileIo::Awaiter<std::size_t> FileIo::read(const IoFile& file, std::uint64_t offset,
                                          std::span<std::byte> into, StopToken stop) {
  check_alignment("read", file, into.data(), into.size(), offset);
  FileRequest request = on_file(Kind::kRead, file);
  request.into = into.data();
  request.bytes = into.size();
  request.offset = offset;
  return {*this, std::move(request), stop};
}

FileIo::Awaiter<void> FileIo::write(const IoFile& file, std::uint64_t offset,
                                    std::span<const std::byte> from, StopToken stop) {
  check_alignment("write", file, from.data(), from.size(), offset);
  FileRequest request = on_file(Kind::kWrite, file);
  request.from = from.data();
  request.bytes = from.size();
  request.offset = offset;
  return {*this, std::move(request), stop};
}

FileIo::Awaiter<void> FileIo::fsync(const IoFile& file, StopToken stop) {
  return {*this, on_file(Kind::kFsync, file), stop};
}

FileIo::Awaiter<void> FileIo::fsync_folder(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kFsyncFolder, .path = std::move(path)}, stop};
}

FileIo::Awaiter<void> FileIo::close(IoFile file) {
  if (file.file_.use_count() > 1) {
    throw failure(ExitCode::kFailure, "file",
                  "cannot close {}: operations of it are on their way, and the last of them closes "
                  "it; await them first",
                  file.path());
  }
  FileRequest request = on_file(Kind::kClose, file);
  if (file.is_open()) {
    request.path_of_file = nullptr;
    request.path = std::move(file.file_->path);
    request.file = nullptr;
    file.file_->descriptor = -1;
  }
  return {*this, std::move(request), StopToken()};
}

FileIo::Awaiter<void> FileIo::rename(std::string from, std::string to, StopToken stop) {
  return {*this,
          FileRequest{.kind = Kind::kRename, .path = std::move(from), .new_path = std::move(to)},
          stop};
}

FileIo::Awaiter<void> FileIo::exchange(std::string one, std::string other, StopToken stop) {
  return {
      *this,
      FileRequest{.kind = Kind::kExchange, .path = std::move(one), .new_path = std::move(other)},
      stop};
}

FileIo::Awaiter<void> FileIo::remove(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kRemove, .path = std::move(path)}, stop};
}

FileIo::Awaiter<void> FileIo::remove_tree(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kRemoveTree, .path = std::move(path)}, stop};
}

FileIo::Awaiter<std::uint64_t> FileIo::size(const IoFile& file, StopToken stop) {
  return {*this, on_file(Kind::kSize, file), stop};
}

FileIo::Awaiter<void> FileIo::reserve(const IoFile& file, std::uint64_t bytes, StopToken stop) {
  FileRequest request = on_file(Kind::kReserve, file);
  request.bytes = bytes;
  return {*this, std::move(request), stop};
}

FileIo::Awaiter<void> FileIo::make_folder(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kMakeFolder, .path = std::move(path)}, stop};
}

FileIo::Awaiter<std::vector<std::string>> FileIo::list_folder(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kListFolder, .path = std::move(path)}, stop};
}

FileIo::Awaiter<void> FileIo::remove_folder(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kRemoveFolder, .path = std::move(path)}, stop};
}

FileIo::Awaiter<std::uint64_t> FileIo::free_bytes(std::string path, StopToken stop) {
  return {*this, FileRequest{.kind = Kind::kFreeBytes, .path = std::move(path)}, stop};
}

}  // namespace tandem
