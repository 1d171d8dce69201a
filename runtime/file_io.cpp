#include "runtime/file_io.hpp"

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/thread.hpp"

namespace tandem {
namespace {

using Kind = FileRequest::Kind;

// At most this much per call: Linux transfers no more than 2 GiB - 4 KiB at a time anyway.
constexpr std::size_t kTransferBytesMax = std::size_t{1} << 30;

// Calls until it is not interrupted; -1 with errno set is an error.
template <class Call>
auto uninterrupted(Call call) noexcept {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) {
      return result;
    }
  }
}

int open_flags(OpenMode mode) noexcept {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY | O_CLOEXEC;
    case OpenMode::kCreate:
      return O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    case OpenMode::kReadWrite:
      return O_RDWR | O_CREAT | O_CLOEXEC;
  }
  return O_RDONLY | O_CLOEXEC;
}

// Transfers piece after piece until all is done, `transfer` returns 0 (the end), or it fails.
template <class Transfer>
std::int64_t transfer_all(std::size_t bytes, std::uint64_t offset, Transfer transfer) noexcept {
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t piece = std::min(bytes - done, kTransferBytesMax);
    const ssize_t moved =
        uninterrupted([&] { return transfer(done, piece, static_cast<off_t>(offset + done)); });
    if (moved < 0) {
      return -1;
    }
    if (moved == 0) {
      break;
    }
    done += static_cast<std::size_t>(moved);
  }
  return static_cast<std::int64_t>(done);
}

std::int64_t fsync_folder(const std::string& path) noexcept {
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) {
    return -1;
  }
  const int result = uninterrupted([&] { return ::fsync(descriptor); });
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return result;
}

std::int64_t size_of(int descriptor) noexcept {
  struct stat status{};
  return ::fstat(descriptor, &status) == 0 ? static_cast<std::int64_t>(status.st_size) : -1;
}

std::int64_t call(FileRequest& r) noexcept {
  switch (r.kind) {
    case Kind::kOpen:
      return uninterrupted([&] { return ::open(r.path.c_str(), open_flags(r.mode), 0666); });
    case Kind::kRead:
      return transfer_all(r.bytes, r.offset, [&](std::size_t at, std::size_t piece, off_t offset) {
        return ::pread(r.descriptor, r.into + at, piece, offset);
      });
    case Kind::kWrite:
      return transfer_all(r.bytes, r.offset, [&](std::size_t at, std::size_t piece, off_t offset) {
        return ::pwrite(r.descriptor, r.from + at, piece, offset);
      });
    case Kind::kFsync:
      return uninterrupted([&] { return ::fsync(r.descriptor); });
    case Kind::kFsyncFolder:
      return fsync_folder(r.path);
    case Kind::kClose:
      // Not again after EINTR: Linux has closed it then.
      return ::close(r.descriptor) == 0 || errno == EINTR ? 0 : -1;
    case Kind::kRename:
      return ::rename(r.path.c_str(), r.new_path.c_str());
    case Kind::kRemove:
      return ::unlink(r.path.c_str());
    case Kind::kSize:
      return size_of(r.descriptor);
  }
  errno = EINVAL;
  return -1;
}

const char* verb(Kind kind) noexcept {
  switch (kind) {
    case Kind::kOpen:
      return "open";
    case Kind::kRead:
      return "read";
    case Kind::kWrite:
      return "write";
    case Kind::kFsync:
    case Kind::kFsyncFolder:
      return "fsync";
    case Kind::kClose:
      return "close";
    case Kind::kRename:
      return "rename";
    case Kind::kRemove:
      return "remove";
    case Kind::kSize:
      return "ask the size of";
  }
  return "use";
}

// A few threads that take one operation after the other from one queue.
class ThreadBackend final : public FileBackend {
 public:
  ThreadBackend(EventLoop& loop, const FileIo::Options& options) : loop_(loop) {
    for (int i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this, name = fmt::format("{}.{}", options.name, i)] { work(name); });
    }
  }
  ~ThreadBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_there_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void submit(FileOp& op) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push(op);
    }
    work_there_.notify_one();
  }

 private:
  void work(const std::string& name) {
    thread::set_name(name);
    std::unique_lock lock(mutex_);
    for (;;) {
      work_there_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      FileOp* op = queue_.pop();
      if (op == nullptr) {
        return;
      }
      lock.unlock();
      {
        TraceSpan span{"file operation"};
        op->execute();
      }
      // The op is the awaiting coroutine's again, and may be gone.
      loop_.post_from_any_thread(op->resume);
      lock.lock();
    }
  }

  EventLoop& loop_;
  std::mutex mutex_;
  std::condition_variable work_there_;
  OpQueue<FileOp> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void FileOp::execute() noexcept {
  errno = 0;
  const std::int64_t value = call(request);
  if (value < 0) {
    error_number = errno;
  } else if (request.kind == Kind::kWrite && static_cast<std::size_t>(value) < request.bytes) {
    error_number = EIO;  // a write that makes no progress and says no error
  } else {
    result = static_cast<std::uint64_t>(value);
  }
}

void FileOp::throw_if_failed() const {
  if (error_number == 0) {
    return;
  }
  std::string what = fmt::format("[file] cannot {} {}", verb(request.kind), request.path);
  if (request.kind == Kind::kRename) {
    what += " to " + request.new_path;
  }
  if (request.kind == Kind::kRead || request.kind == Kind::kWrite) {
    what += fmt::format(" at byte {} ({} bytes)", request.offset, request.bytes);
  }
  what += ": " + std::generic_category().message(error_number);
  throw FileError(what, error_number);
}

IoFile& IoFile::operator=(IoFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

IoFile::~IoFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

FileIo::FileIo(EventLoop& loop, Options options)
    : backend_(std::make_unique<ThreadBackend>(loop, options)) {
  TANDEM_CHECK(options.threads > 0, "file operations need a thread");
}

FileIo::~FileIo() = default;

FileIo::Awaiter<IoFile> FileIo::open(std::string path, OpenMode mode) {
  return {*backend_, FileRequest{.kind = Kind::kOpen, .path = std::move(path), .mode = mode}};
}

FileIo::Awaiter<std::size_t> FileIo::read(const IoFile& file, std::uint64_t offset,
                                          std::span<std::byte> into) {
  return {*backend_, FileRequest{.kind = Kind::kRead,
                                 .path = file.path_,
                                 .descriptor = file.descriptor_,
                                 .into = into.data(),
                                 .bytes = into.size(),
                                 .offset = offset}};
}

FileIo::Awaiter<void> FileIo::write(const IoFile& file, std::uint64_t offset,
                                    std::span<const std::byte> from) {
  return {*backend_, FileRequest{.kind = Kind::kWrite,
                                 .path = file.path_,
                                 .descriptor = file.descriptor_,
                                 .from = from.data(),
                                 .bytes = from.size(),
                                 .offset = offset}};
}

FileIo::Awaiter<void> FileIo::fsync(const IoFile& file) {
  return {*backend_,
          FileRequest{.kind = Kind::kFsync, .path = file.path_, .descriptor = file.descriptor_}};
}

FileIo::Awaiter<void> FileIo::fsync_folder(std::string path) {
  return {*backend_, FileRequest{.kind = Kind::kFsyncFolder, .path = std::move(path)}};
}

FileIo::Awaiter<void> FileIo::close(IoFile file) {
  return {*backend_, FileRequest{.kind = Kind::kClose,
                                 .path = std::move(file.path_),
                                 .descriptor = std::exchange(file.descriptor_, -1)}};
}

FileIo::Awaiter<void> FileIo::rename(std::string from, std::string to) {
  return {*backend_,
          FileRequest{.kind = Kind::kRename, .path = std::move(from), .new_path = std::move(to)}};
}

FileIo::Awaiter<void> FileIo::remove(std::string path) {
  return {*backend_, FileRequest{.kind = Kind::kRemove, .path = std::move(path)}};
}

FileIo::Awaiter<std::uint64_t> FileIo::size(const IoFile& file) {
  return {*backend_,
          FileRequest{.kind = Kind::kSize, .path = file.path_, .descriptor = file.descriptor_}};
}

}  // namespace tandem
