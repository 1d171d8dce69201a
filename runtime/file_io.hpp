// runtime/file_io.hpp — file operations as awaitables: the loop never waits for a disk.
//
// Back end: a few threads of its own that do one blocking call after the other. Reads and writes are carried through short
// transfers and EINTR. A failure is a FileError that names path and operation.
// Thread rule: of the loop's thread. Buffers and the IoFile belong to the operation until its await returns.
// Cancel rule: cannot be cancelled: a started operation ends in its own time, and the await lasts until then (its buffer is
// in use). A long transfer that has to stop early is written in pieces.
//
//   FileIo io(loop);
//   IoFile file = co_await io.open("run/state.tmp", OpenMode::kCreate);
//   co_await io.write(file, 0, bytes);   co_await io.fsync(file);   co_await io.close(std::move(file));
//   co_await io.rename("run/state.tmp", "run/state");   co_await io.fsync_folder("run");
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/root_task.hpp"
#include "runtime/task.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

class EventLoop;

/// An operation on a file failed: "[file] cannot write run/state at byte 4096: No space left on device".
class FileError : public Error {
 public:
  FileError(const std::string& text, int error_number)
      : Error(ExitCode::kFailure, text), error_number_(error_number) {}
  /// errno's value, e.g. ENOSPC.
  [[nodiscard]] int error_number() const noexcept { return error_number_; }

 private:
  int error_number_;
};

enum class OpenMode {
  kRead,       // must exist
  kCreate,     // for writing; made, or emptied
  kReadWrite,  // made if it is not there, kept if it is
};

/// An open file. Closed by FileIo::close (which reports errors), else by the destructor (which blocks and cannot).
class IoFile {
 public:
  IoFile() noexcept = default;
  IoFile(IoFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
  IoFile& operator=(IoFile&& other) noexcept;
  ~IoFile();

  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  friend class FileIo;
  IoFile(int descriptor, std::string path) noexcept
      : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_ = -1;
  std::string path_;
};

/// What is asked of the back end. Internal.
struct FileRequest {
  enum class Kind : unsigned char {
    kOpen,
    kRead,
    kWrite,
    kFsync,
    kFsyncFolder,
    kClose,
    kRename,
    kRemove,
    kSize
  };
  Kind kind;
  std::string path;
  int descriptor = -1;
  OpenMode mode{};
  std::string new_path = {};        // of a rename
  std::byte* into = nullptr;        // of a read
  const std::byte* from = nullptr;  // of a write
  std::size_t bytes = 0;
  std::uint64_t offset = 0;
};

/// One operation on its way; lives in the awaiting coroutine's frame. Internal.
struct FileOp : Op {
  explicit FileOp(FileRequest what) : request(std::move(what)) {}

  /// Carries it out with blocking calls: result or error_number is set then.
  void execute() noexcept;
  void throw_if_failed() const;

  FileRequest request;
  std::uint64_t result = 0;  // bytes transferred, size, or descriptor
  int error_number = 0;
  detail::ResumeOp resume;
};

/// Carries operations out and posts op.resume to the loop. Internal.
class FileBackend {
 public:
  virtual ~FileBackend() = default;
  virtual void submit(FileOp& op) noexcept = 0;
};

class FileIo {
  template <class T>
  class Awaiter;

 public:
  struct Options {
    int threads = 2;
    std::string name = "io";
  };
  explicit FileIo(EventLoop& loop) : FileIo(loop, Options()) {}
  FileIo(EventLoop& loop, Options options);
  ~FileIo();
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;

  [[nodiscard]] Awaiter<IoFile> open(std::string path, OpenMode mode);
  /// Fills `into` from byte `offset` on; returns how many bytes there were, fewer only at the file's end.
  [[nodiscard]] Awaiter<std::size_t> read(const IoFile& file, std::uint64_t offset,
                                          std::span<std::byte> into);
  /// Writes all of `from`.
  [[nodiscard]] Awaiter<void> write(const IoFile& file, std::uint64_t offset,
                                    std::span<const std::byte> from);
  /// What was written is on the medium afterwards.
  [[nodiscard]] Awaiter<void> fsync(const IoFile& file);
  /// The folder's entries (after a rename, a creation) are on the medium afterwards.
  [[nodiscard]] Awaiter<void> fsync_folder(std::string path);
  [[nodiscard]] Awaiter<void> close(IoFile file);
  /// Atomic; replaces `to`.
  [[nodiscard]] Awaiter<void> rename(std::string from, std::string to);
  [[nodiscard]] Awaiter<void> remove(std::string path);
  [[nodiscard]] Awaiter<std::uint64_t> size(const IoFile& file);

 private:
  std::unique_ptr<FileBackend> backend_;
};

template <class T>
class FileIo::Awaiter {
 public:
  static constexpr const char* kAwaitName = "file";
  Awaiter(FileBackend& backend, FileRequest request) : backend_(backend), op_(std::move(request)) {}
  Awaiter(const Awaiter&) = delete;
  Awaiter& operator=(const Awaiter&) = delete;

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    op_.resume.set(coroutine);
    backend_.submit(op_);
  }
  T await_resume() {
    op_.throw_if_failed();
    if constexpr (std::is_same_v<T, IoFile>) {
      return IoFile(static_cast<int>(op_.result), std::move(op_.request.path));
    } else if constexpr (!std::is_void_v<T>) {
      return static_cast<T>(op_.result);
    }
  }

 private:
  friend class FileIo;
  FileBackend& backend_;
  FileOp op_;
};

}  // namespace tandem
