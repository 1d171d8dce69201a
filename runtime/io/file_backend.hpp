// runtime/io/file_backend.hpp — the interface of FileIo's back ends, and one file operation.
//
// A back end does single calls: each may end short, interrupted or with an error. FileOp takes it
// from there, alike for every back end (io_uring, threads, simulated, with faults): it carries
// short transfers, EINTR and refusals through, cuts transfers that are larger than the kernel
// takes, and ends the await.
// Thread rule: submit(), cancel() and drop() on the loop's thread.
// Cancel rule: cancel() is a request; a submitted op comes back in any case, once, by loop.post(op)
// (or post_from_any_thread) with op.outcome set; until then it is the back end's.
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
  kRead,       // must exist; of a pipe the open waits for a writer
  kReadFile,   // must exist, and is a regular file: nothing is waited for
  kCreate,     // for writing; made, or emptied
  kReadWrite,  // made if it is not there, kept if it is
  kUpdate,     // for reading and writing; must exist as a regular file, and is no link
  kNew,        // for writing; must not be there, not as a link either
  kPrivate,    // for reading and writing by this user alone; likewise
  kNameless,   // the same in the folder `path`, without a name; EOPNOTSUPP where that is unknown
};

/// A descriptor that is open: an IoFile has it, and every operation of that file that is on its
/// way. Closed by the last of them, so that no operation finds its number in another file's hands.
struct OpenFile {
  OpenFile(int number, FileBackend* backend, std::string name) noexcept
      : descriptor(number), owner(backend), path(std::move(name)) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor;
  FileBackend* owner;  // of a descriptor that is not the kernel's
  std::string path;
};

/// The operation that is asked for.
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
  std::string path = {};                      // owned; of an operation on an open file: empty
  const std::string* path_of_file = nullptr;  // ... and this is its name
  int descriptor = -1;
  std::shared_ptr<OpenFile> file = {};  // ... that stays open meanwhile
  OpenMode mode{};
  bool direct = false;                  // past the page cache
  std::string new_path = {};            // of a rename or an exchange
  std::vector<std::string> names = {};  // what a list of a folder found
  std::byte* into = nullptr;            // of a read
  const std::byte* from = nullptr;      // of a write
  std::size_t bytes = 0;                // of a transfer; the size that is reserved
  std::uint64_t offset = 0;

  /// "read", for messages and traces.
  [[nodiscard]] Name verb() const noexcept;
};

/// One operation on its way; lives in the awaiting coroutine's frame.
class FileOp : public TimerOp {
 public:
  using Kind = FileRequest::Kind;
  // of buffer, offset and size past the page cache
  static constexpr std::size_t kDirectAlignment = 4096;

  FileOp(FileBackend& backend, EventLoop& loop, FileRequest what, std::size_t piece_bytes_max,
         StopToken stop);

  // For the back end: the call at hand, to be done once.
  FileRequest request;
  [[nodiscard]] std::byte* into() const noexcept { return request.into + done_; }
  [[nodiscard]] const std::byte* from() const noexcept { return request.from + done_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return request.offset + done_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] bool is_transfer() const noexcept {
    return request.kind == Kind::kRead || request.kind == Kind::kWrite;
  }
  /// This call moves no more than so much (a short transfer on purpose).
  void limit_call(std::size_t bytes) noexcept { call_bytes_max_ = bytes; }
  /// Set by the back end before it posts the op: bytes moved, descriptor, size (of a file, or
  /// what is free) or 0; or -errno.
  std::int64_t outcome = 0;
  // Notes of back ends: it waits in a queue; the kernel has it; it was never handed on.
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
  /// A submitted op should end early: with outcome -ECANCELED if it still can, else in its own
  /// time. May be too late: the op may be posted already.
  virtual void cancel(FileOp& op) noexcept = 0;
  /// One word for messages: "threads", "io_uring".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// True if descriptors are its own numbers, not the kernel's: drop() closes them then, and files
  /// must not outlive it.
  [[nodiscard]] virtual bool owns_descriptors() const noexcept { return false; }
  /// A file dies that was not closed.
  virtual void drop(int descriptor) noexcept { static_cast<void>(descriptor); }
};

}  // namespace tandem
