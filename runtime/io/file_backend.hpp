// runtime/io/file_backend.hpp — the interface of FileIo's back ends, and one file operation.
//
// A back end does single calls, each of which may end short, interrupted or with an error. FileOp
// does the rest, alike for every back end (io_uring, threads, simulated, with faults): it goes on
// after short transfers, EINTR and refusals, cuts transfers that are larger than the kernel takes,
// and ends the await.
// Thread rule: submit(), cancel() and drop() on the loop's thread.
// Cancel rule: cancel() is a request. A submitted op comes back in any case, once, by loop.post(op)
// (or post_from_any_thread) with op.outcome set; until then it belongs to the back end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/detail/root_task.hpp"
#include "runtime/detail/timer_heap.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

class EventLoop;
class FileBackend;

enum class OpenMode {
  kRead,       // must exist; opening a pipe waits for a writer
  kReadFile,   // must exist as a regular file; never waits
  kCreate,     // for writing; made, or emptied if it exists
  kReadWrite,  // for reading and writing; made if it does not exist
  kUpdate,     // for reading and writing; must exist as a regular file, and is no link
  kNew,        // for writing; must not exist, not even as a link
  kPrivate,    // as kNew, for reading and writing by this user alone
  kNameless,   // as kPrivate, but nameless in the folder `path`; EOPNOTSUPP where that is unknown
};

/// An open descriptor, which an IoFile shares with all operations of the file that are on their
/// way. The last of them closes it, so that no operation finds its number reused for another file.
struct OpenFile {
  OpenFile(int number, FileBackend* backend, std::string name) noexcept
      : descriptor(number), owner(backend), path(std::move(name)) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor;
  FileBackend* owner;  // the back end that made the number; null: the kernel
  std::string path;
};

/// The operation that is requested.
struct FileRequest {
  enum class Kind : unsigned char {
    kOpen,
    kRead,
    kWrite,
    kFsync,
    kFsyncFolder,
    kClose,
    kRename,
    kExchange,
    kRemove,
    kRemoveTree,
    kSize,
    kReserve,
    kMakeFolder,
    kListFolder,
    kRemoveFolder,
    kFreeBytes
  };
  Kind kind;
  std::string path = {};                      // owned; empty for an operation on an open file
  const std::string* path_of_file = nullptr;  // the name of that open file
  int descriptor = -1;
  std::shared_ptr<OpenFile> file = {};  // keeps that file open meanwhile
  OpenMode mode{};
  bool direct = false;                  // transfers go past the page cache
  std::string new_path = {};            // of a rename or an exchange
  std::vector<std::string> names = {};  // the result of kListFolder
  std::byte* into = nullptr;            // of a read
  const std::byte* from = nullptr;      // of a write
  std::size_t bytes = 0;                // of a transfer; the size for kReserve
  std::uint64_t offset = 0;

  /// "read", for messages and traces.
  [[nodiscard]] Name verb() const noexcept;
};

/// One operation on its way; lives in the awaiting coroutine's frame.
class FileOp : public TimerOp {
 public:
  using Kind = FileRequest::Kind;
  // the alignment of buffer, offset and size for transfers past the page cache
  static constexpr std::size_t kDirectAlignment = 4096;

  FileOp(FileBackend& backend, EventLoop& loop, FileRequest what, std::size_t piece_bytes_max,
         StopToken stop);

  // For the back end: the call that is to be done now, once.
  FileRequest request;
  [[nodiscard]] std::byte* into() const noexcept { return request.into + done_; }
  [[nodiscard]] const std::byte* from() const noexcept { return request.from + done_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return request.offset + done_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] bool is_transfer() const noexcept {
    return request.kind == Kind::kRead || request.kind == Kind::kWrite;
  }
  /// Limits this call to `bytes` (a short transfer on purpose).
  void limit_call(std::size_t bytes) noexcept { call_bytes_max_ = bytes; }
  /// The back end sets it before it posts the op: the bytes moved, a descriptor, a size (of a file
  /// or of the free space) or 0; or -errno.
  std::int64_t outcome = 0;
  // Notes of back ends: the op's link in a queue; it waits there; the kernel has it; it was never
  // handed on.
  FileOp* previous = nullptr;
  bool queued = false;
  bool in_kernel = false;
  bool failed_on_purpose = false;

  // For the awaiter.
  [[nodiscard]] bool stop_requested() const noexcept { return stop_.stop_requested(); }
  void refuse_to_start() noexcept { stopped_ = true; }
  template <class Promise>
  void start(std::coroutine_handle<Promise> coroutine) noexcept {
    check_loop();
    resume_.set(coroutine);
    stop_.link(on_stop_);
    call_again();
  }
  /// Throws Stopped or a FileError if it did not run to its end.
  void throw_if_failed() const;
  [[nodiscard]] std::uint64_t result() const noexcept { return result_; }

 private:
  struct OnStop : StopCallback {
    explicit OnStop(FileOp& owner) noexcept
        : StopCallback([](StopCallback& self) noexcept { static_cast<OnStop&>(self).op.cancel(); }),
          op(owner) {}
    FileOp& op;
  };
  static void arrive(Op& op) noexcept;
  void check_loop() const noexcept;
  void call_again() noexcept;
  void take_moved() noexcept;
  void take_error(int number) noexcept;
  void cancel() noexcept;

  FileBackend& backend_;
  EventLoop& loop_;
  std::size_t piece_bytes_max_;
  std::size_t call_bytes_max_;
  std::size_t done_ = 0;
  std::uint64_t result_ = 0;  // bytes transferred, size, or descriptor
  int error_number_ = 0;
  int refusals_ = 0;  // EAGAIN or ECANCELED in a row
  bool ended_ = false;
  bool stopped_ = false;
  bool resting_ = false;  // between two calls, until its timer fires
  StopToken stop_;
  OnStop on_stop_{*this};
  detail::ResumeOp resume_;
};

class FileBackend {
 public:
  virtual ~FileBackend() = default;
  /// Begins the op's call.
  virtual void submit(FileOp& op) noexcept = 0;
  /// Asks a submitted op to end early: with outcome -ECANCELED if it still can, else in its own
  /// time. The op may have been posted already.
  virtual void cancel(FileOp& op) noexcept = 0;
  /// One word for messages: "threads", "io_uring".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// True if descriptors are the back end's own numbers, not the kernel's. Then drop() closes them,
  /// and files must not outlive the back end.
  [[nodiscard]] virtual bool owns_descriptors() const noexcept { return false; }
  /// Called when a file is destroyed that was not closed.
  virtual void drop(int descriptor) noexcept { static_cast<void>(descriptor); }
};

}  // namespace tandem
