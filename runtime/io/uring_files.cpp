#include "runtime/io/uring_files.hpp"

#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/detail/linked_queue.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/reactor_wake.hpp"
#include "runtime/io/thread_files.hpp"
#include "runtime/io/uring.hpp"

namespace tandem::detail {
namespace {

using Kind = FileRequest::Kind;

constexpr const char* kMoved =
    "a loop changed its thread with file operations on their way: await them before";
constexpr unsigned kNoOpcode = ~0U;  // IORING_OP_LAST is a real one on newer kernels

unsigned opcode_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kRead:
      return IORING_OP_READ;
    case Kind::kWrite:
      return IORING_OP_WRITE;
    case Kind::kFsync:
      return IORING_OP_FSYNC;
    case Kind::kClose:
      return IORING_OP_CLOSE;
    // Calls by path go from one descriptor to the next (system/reach.hpp), and the ring's fallocate
    // says EOPNOTSUPP where the threads set the size.
    default:
      return kNoOpcode;
  }
}

void prepare(io_uring_sqe* entry, const FileOp& op) noexcept {
  const FileRequest& r = op.request;
  switch (r.kind) {
    case Kind::kRead:
      io_uring_prep_read(entry, r.descriptor, op.into(), static_cast<unsigned>(op.bytes()),
                         op.offset());
      break;
    case Kind::kWrite:
      io_uring_prep_write(entry, r.descriptor, op.from(), static_cast<unsigned>(op.bytes()),
                          op.offset());
      break;
    case Kind::kFsync:
      io_uring_prep_fsync(entry, r.descriptor, 0);
      break;
    case Kind::kClose:
      io_uring_prep_close(entry, r.descriptor);
      break;
    default:
      break;
  }
}

class UringFiles final : public FileBackend, private Poller {
 public:
  UringFiles(EventLoop& loop, UringOptions options) : loop_(loop), options_(std::move(options)) {
    make_ring();
    submit_round_ = new SubmitRound(*this);
  }
  ~UringFiles() override {
    TANDEM_CHECK(operations_ == 0 && waiting_.empty(), "file operations outlive their FileIo");
    loop_.remove_poller(*this);
    if (submit_round_->posted) {
      submit_round_->files = nullptr;  // the loop has it
    } else {
      delete submit_round_;
    }
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }

  void submit(FileOp& op) noexcept override {
    if (!ring_->can_do(opcode_of(op.request.kind))) {
      try {
        threads().submit(op);
      } catch (...) {  // no thread can be made now: FileOp tries again, and says so in the end
        op.outcome = -EAGAIN;
        loop_.post(op);
      }
      return;
    }
    if (idle()) {
      loop_.add_poller(*this);
    }
    op.queued = true;
    waiting_.push(op);
    post_round();
  }

  void cancel(FileOp& op) noexcept override {
    if (!ring_->can_do(opcode_of(op.request.kind))) {
      if (threads_ != nullptr) {
        threads_->cancel(op);
      }
    } else if (op.queued) {
      op.queued = false;
      waiting_.take_out(op);
      op.outcome = -ECANCELED;
      loop_.post(op);
      leave_loop_if_idle();
    } else if (op.in_kernel) {
      ask_to_cancel(op);
    }
  }

 private:
  // Runs behind everything that is queued on the loop: what that submits goes to the kernel in one
  // call.
  struct SubmitRound : Op {
    explicit SubmitRound(UringFiles& files_in) noexcept
        : Op(&SubmitRound::arrive), files(&files_in) {}
    static void arrive(Op& op) noexcept {
      auto& self = static_cast<SubmitRound&>(op);
      self.posted = false;
      if (self.files != nullptr) {
        self.files->submit_waiting();
      } else {
        delete &self;
      }
    }
    UringFiles* files;
    bool posted = false;
  };

  void make_ring() {
    wake_.reset();
    // The kernel gives a closed ring's locked memory back a moment later, by a thread of its own.
    constexpr int kTries = 100;
    const bool had_one = std::exchange(ring_, nullptr) != nullptr;
    ring_ = std::make_unique<Uring>(options_.entries);
    for (int i = 0; had_one && ring_->error() == ENOMEM && i < kTries; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ring_ = std::make_unique<Uring>(options_.entries);
    }
    if (ring_->error() != 0) {
      throw failure(ExitCode::kFailure, "io", "io_uring is not usable here: {}; use threads",
                    uring_refusal(ring_->error()));
    }
    wake_.emplace(
        loop_, ring_->event_descriptor(),
        [](void* owner) noexcept { static_cast<UringFiles*>(owner)->woken(); }, this);
  }
  [[nodiscard]] ThreadFiles& threads() {
    if (threads_ == nullptr) {
      threads_ = std::make_unique<ThreadFiles>(loop_, options_.threads, options_.name);
    }
    return *threads_;
  }
  [[nodiscard]] bool idle() const noexcept { return in_kernel_ == 0 && waiting_.empty(); }
  void leave_loop_if_idle() noexcept {
    if (idle()) {
      loop_.remove_poller(*this);
    }
  }
  void post_round() noexcept {
    if (!submit_round_->posted) {
      submit_round_->posted = true;
      loop_.post(*submit_round_);
    }
  }

  void submit_waiting() noexcept {
    if (idle()) {
      return;
    }
    if (!ring_->belongs_here()) {
      // The loop runs on another thread than before, and the kernel has tied the ring to that one.
      TANDEM_CHECK_FOR(loop_.name().c_str(), in_kernel_ == 0, kMoved);
      make_ring();
      TANDEM_CHECK(ring_->belongs_here(), "a new ring belongs to the thread that uses it first");
    }
    while (operations_ < ring_->entries() && !waiting_.empty()) {
      io_uring_sqe* entry = ring_->next_entry();
      if (entry == nullptr) {
        break;
      }
      FileOp& op = *waiting_.pop();
      op.queued = false;
      prepare(entry, op);
      if (op.is_transfer() && !op.request.direct && op.bytes() >= options_.worker_bytes) {
        entry->flags |= IOSQE_ASYNC;  // else the loop's thread copies what the page cache has
      }
      io_uring_sqe_set_data(entry, &op);
      op.in_kernel = true;
      ++operations_;
      ++in_kernel_;
    }
    const bool taken = ring_->enter();
    poll();
    if (!taken || (!waiting_.empty() && operations_ < ring_->entries())) {
      post_round();
    }
  }

  void ask_to_cancel(FileOp& op) noexcept {
    io_uring_sqe* entry = ring_->next_entry();
    if (entry == nullptr) {
      static_cast<void>(ring_->enter());
      entry = ring_->next_entry();
    }
    if (entry == nullptr) {
      return;  // the kernel takes nothing at the moment: the operation ends in its own time
    }
    // Before any entry of an operation that could come to lie at the same address later.
    io_uring_prep_cancel(entry, &op, 0);
    io_uring_sqe_set_data(entry, nullptr);
    ++in_kernel_;
    post_round();
  }

  bool poll() noexcept override {
    const unsigned count = ring_->reap([this](std::uint64_t data, int result) {
      --in_kernel_;
      if (data == 0) {
        return;  // what became of a request to cancel
      }
      --operations_;
      auto& op = *reinterpret_cast<FileOp*>(data);  // NOLINT(performance-no-int-to-ptr)
      op.in_kernel = false;
      op.outcome = result;
      loop_.post(op);
    });
    if (count > 0) {
      if (!waiting_.empty()) {
        post_round();
      }
      leave_loop_if_idle();
    }
    return count > 0;
  }

  bool poll_before_sleep() noexcept override {
    // Its completions would never come here.
    TANDEM_CHECK_FOR(loop_.name().c_str(), in_kernel_ == 0 || ring_->belongs_here(), kMoved);
    wake_->arm();
    ring_->notify_event(true);
    const bool found = poll();
    if (found) {
      ring_->notify_event(false);
    }
    return found;
  }

  void woken() noexcept {
    ring_->notify_event(false);
    std::uint64_t count = 0;
    static_cast<void>(::read(ring_->event_descriptor(), &count, sizeof count));
    poll();
  }

  EventLoop& loop_;
  UringOptions options_;
  std::unique_ptr<Uring> ring_;
  std::unique_ptr<ThreadFiles> threads_;
  LinkedQueue<FileOp> waiting_;
  SubmitRound* submit_round_ = nullptr;  // outlives this while it is in the loop's queue
  unsigned operations_ = 0;              // given to the ring
  unsigned in_kernel_ = 0;               // ... and requests to cancel one
  std::optional<ReactorWake> wake_;
};

}  // namespace

const UringSupport& uring_support() {
  static const UringSupport support = [] {
    const Uring ring(8);
    if (ring.error() != 0) {
      return UringSupport{.usable = false, .what = uring_refusal(ring.error())};
    }
    return UringSupport{.usable = true,
                        .what = ring.is_deferred() ? "single issuer, deferred task work"
                                                   : "without deferred task work (kernel < 6.1)"};
  }();
  return support;
}

std::unique_ptr<FileBackend> make_uring_files(EventLoop& loop, const UringOptions& options) {
  return std::make_unique<UringFiles>(loop, options);
}

}  // namespace tandem::detail
