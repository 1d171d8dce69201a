// runtime/io/file_io.hpp — file operations as awaitables: the loop never blocks on a disk.
//
// Reads and writes go on after short transfers, EINTR and EAGAIN. A failure is a FileError that
// names path and operation. A FileBackend does the calls: io_uring, threads that block, or the
// caller's own (simulated, with faults).
// Thread rule: the loop's thread. Buffers and the IoFile belong to the operation until its await
// returns.
// Cancel rule: a stop request is passed on to the operation, and the await lasts until the
// operation has ended, because its buffer is in use. It throws Stopped if the operation did not run
// to its end (a write may have been done in part); else it returns as usual. close() cannot be
// stopped.
//
//   FileIo io(loop);
//   IoFile file = co_await io.open("run/state.tmp", OpenMode::kCreate);
//   co_await io.write(file, 0, bytes);
//   co_await io.fsync(file);
//   co_await io.close(std::move(file));
//   co_await io.rename("run/state.tmp", "run/state");
//   co_await io.fsync_folder("run");
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/io/file_backend.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"
#include "runtime/util/enum_names.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

class EventLoop;

/// An operation on a file failed: "[file] cannot write run/state at byte 4096: No space left on
/// device".
class FileError : public Error {
 public:
  FileError(const std::string& text, int error_number)
      : Error(ExitCode::kFailure, text), error_number_(error_number) {}
  /// errno's value, e.g. ENOSPC.
  [[nodiscard]] int error_number() const noexcept { return error_number_; }

 private:
  int error_number_;
};

/// An open file. FileIo::close() closes it and reports errors. Otherwise its destructor closes it,
/// which blocks and cannot report errors, or the last of its operations that are still on their
/// way.
class IoFile {
 public:
  IoFile() noexcept = default;
  IoFile(IoFile&& other) noexcept = default;
  IoFile& operator=(IoFile&& other) noexcept = default;
  ~IoFile() = default;

  [[nodiscard]] bool is_open() const noexcept { return file_ != nullptr; }
  /// Empty if no file is open.
  [[nodiscard]] const std::string& path() const noexcept;
  /// True if transfers go past the page cache: then offset and size are multiples of
  /// FileIo::kDirectAlignment, and the buffer's address is a multiple of memory_alignment().
  [[nodiscard]] bool is_direct() const noexcept { return memory_alignment_ != 0; }
  /// The alignment that the file system asks for, at most FileIo::kDirectAlignment; 0: the file is
  /// read and written through the cache.
  [[nodiscard]] std::size_t memory_alignment() const noexcept { return memory_alignment_; }

 private:
  friend class FileIo;
  IoFile(int descriptor, bool direct, FileBackend* owner, std::string path);
  void check(OpenMode mode) const;
  [[nodiscard]] int descriptor() const noexcept {
    return file_ != nullptr ? file_->descriptor : -1;
  }
  std::shared_ptr<OpenFile> file_;
  std::size_t memory_alignment_ = 0;
};

class FileIo {
  template <class T>
  class Awaiter;

 public:
  static constexpr std::size_t kDirectAlignment = FileOp::kDirectAlignment;

  enum class Backend {
    kAuto,   // io_uring, else threads
    kUring,  // an Error if it cannot be had
    kThreads,
  };
  struct Options {
    Backend backend = Backend::kAuto;
    unsigned ring_entries = 128;  // operations that the kernel has at a time; more wait
    int threads = 2;              // that block: for calls by path; without io_uring for all calls
    std::string name = "io";
    // larger transfers are cut: the kernel's own limit is 2 GiB
    std::size_t call_bytes_max = std::size_t{1} << 30;
  };
  explicit FileIo(EventLoop& loop) : FileIo(loop, Options()) {}
  FileIo(EventLoop& loop, Options options);
  /// Uses the caller's own back end.
  FileIo(EventLoop& loop, std::unique_ptr<FileBackend> backend)
      : FileIo(loop, std::move(backend), Options()) {}
  FileIo(EventLoop& loop, std::unique_ptr<FileBackend> backend, Options options);
  /// No operation may be on its way any more.
  ~FileIo();
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;

  /// Opens a file. With kReadFile and kUpdate a pipe, a device or a folder in the file's place is
  /// an error at once.
  [[nodiscard]] Awaiter<IoFile> open(std::string path, OpenMode mode, StopToken stop = {});
  /// Opens a file past the page cache (O_DIRECT) if the file system can; the alignment of its reads
  /// and writes is checked.
  [[nodiscard]] Awaiter<IoFile> open_direct(std::string path, OpenMode mode, StopToken stop = {});
  /// Fills `into` from byte `offset` on; returns the number of bytes read, fewer than asked for
  /// only at the file's end.
  [[nodiscard]] Awaiter<std::size_t> read(const IoFile& file, std::uint64_t offset,
                                          std::span<std::byte> into, StopToken stop = {});
  /// Writes all of `from`.
  [[nodiscard]] Awaiter<void> write(const IoFile& file, std::uint64_t offset,
                                    std::span<const std::byte> from, StopToken stop = {});
  /// All that was written is on the medium afterwards.
  [[nodiscard]] Awaiter<void> fsync(const IoFile& file, StopToken stop = {});
  /// The folder's entries (after a rename, a creation) are on the medium afterwards.
  [[nodiscard]] Awaiter<void> fsync_folder(std::string path, StopToken stop = {});
  /// Closes the file. If operations of it are still on their way, this fails and the file is closed
  /// later.
  [[nodiscard]] Awaiter<void> close(IoFile file);
  /// Renames atomically; replaces `to`.
  [[nodiscard]] Awaiter<void> rename(std::string from, std::string to, StopToken stop = {});
  /// Exchanges the names of two files or two folders atomically; EINVAL if the file system cannot
  /// (network file systems).
  [[nodiscard]] Awaiter<void> exchange(std::string one, std::string other, StopToken stop = {});
  [[nodiscard]] Awaiter<void> remove(std::string path, StopToken stop = {});
  /// Removes a file, or a folder with all that lies in it; it is no error if nothing has that name.
  /// A link is removed itself and never followed. Entries that cannot be removed stay, and the
  /// first of them is the error; all others are gone.
  [[nodiscard]] Awaiter<void> remove_tree(std::string path, StopToken stop = {});
  [[nodiscard]] Awaiter<std::uint64_t> size(const IoFile& file, StopToken stop = {});
  /// Gives the file at least this size and its space on the disk, so that ENOSPC comes before the
  /// first byte. If the file system cannot reserve, only the size is set.
  [[nodiscard]] Awaiter<void> reserve(const IoFile& file, std::uint64_t bytes, StopToken stop = {});
  /// Makes a folder; EEXIST if something has that name.
  [[nodiscard]] Awaiter<void> make_folder(std::string path, StopToken stop = {});
  /// Returns the names in the folder, sorted, without "." and "..".
  [[nodiscard]] Awaiter<std::vector<std::string>> list_folder(std::string path,
                                                              StopToken stop = {});
  /// Removes an empty folder.
  [[nodiscard]] Awaiter<void> remove_folder(std::string path, StopToken stop = {});
  /// Returns the bytes that a user without privileges may still write on the disk that holds
  /// `path`.
  [[nodiscard]] Awaiter<std::uint64_t> free_bytes(std::string path, StopToken stop = {});

  /// Makes blocks of `from` those of `into` as well, without a copy, if the file system can (XFS,
  /// Btrfs); a later write to either file gives it its own block. Offsets and size are multiples of
  /// the file system's blocks. Returns false if it cannot; then nothing has changed. Waits for the
  /// disk, so it is for a pool's thread.
  [[nodiscard]] static bool share(const IoFile& from, std::uint64_t from_offset, const IoFile& into,
                                  std::uint64_t offset, std::uint64_t bytes);

  /// The back end: "io_uring" or "threads", and why it is this one.
  [[nodiscard]] std::string_view backend_name() const noexcept { return backend_->name(); }
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  /// Makes the back end that `options` ask for, so that another one can be put in front of it.
  /// kAuto takes threads if no further ring can be made now. `why` gets the text of why().
  [[nodiscard]] static std::unique_ptr<FileBackend> make_backend(EventLoop& loop,
                                                                 const Options& options,
                                                                 std::string* why = nullptr);
  struct Choice {
    bool uring = false;
    std::string why;
  };
  /// Returns the back end that kAuto takes on this machine, and why. Tries io_uring out once per
  /// process.
  [[nodiscard]] static Choice choose();

 private:
  [[nodiscard]] FileRequest on_file(FileRequest::Kind kind, const IoFile& file) const noexcept;

  EventLoop& loop_;
  std::size_t call_bytes_max_;
  std::unique_ptr<FileBackend> backend_;
  std::string why_;
};

template <>
inline constexpr auto kEnumNames<FileIo::Backend> =
    std::array{EnumName{FileIo::Backend::kAuto, "auto"}, EnumName{FileIo::Backend::kUring, "uring"},
               EnumName{FileIo::Backend::kThreads, "threads"}};

template <class T>
class FileIo::Awaiter {
 public:
  static constexpr const char* kAwaitName = "file";
  Awaiter(FileIo& io, FileRequest request, StopToken stop)
      : backend_(*io.backend_),
        op_(backend_, io.loop_, std::move(request), io.call_bytes_max_, stop) {}
  Awaiter(const Awaiter&) = delete;
  Awaiter& operator=(const Awaiter&) = delete;

  bool await_ready() noexcept {
    if (!op_.stop_requested()) {
      return false;
    }
    op_.refuse_to_start();
    return true;
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    op_.start(coroutine);
  }
  T await_resume() {
    op_.throw_if_failed();
    if constexpr (std::is_same_v<T, IoFile>) {
      IoFile file(static_cast<int>(op_.result()), op_.request.direct,
                  backend_.owns_descriptors() ? &backend_ : nullptr, std::move(op_.request.path));
      file.check(op_.request.mode);
      return file;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return std::move(op_.request.names);
    } else if constexpr (!std::is_void_v<T>) {
      return static_cast<T>(op_.result());
    }
  }

 private:
  FileBackend& backend_;
  FileOp op_;
};

}  // namespace tandem
