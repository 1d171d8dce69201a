#include "runtime/io/thread_files.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/system/remove_tree.hpp"
#include "runtime/thread.hpp"
#include "runtime/trace.hpp"

namespace tandem::detail {
namespace {

std::int64_t fsync_folder(const std::string& path) noexcept {
  const int descriptor = reach::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return -1;
  }
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return result;
}

std::int64_t size_of(int descriptor) noexcept {
  struct stat status{};
  return ::fstat(descriptor, &status) == 0 ? static_cast<std::int64_t>(status.st_size) : -1;
}

std::int64_t reserve(int descriptor, std::size_t bytes) noexcept {
  const auto size = static_cast<off_t>(bytes);
  if (size > 0 && ::fallocate(descriptor, 0, 0, size) == 0) {
    return 0;
  }
  if (size > 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return -1;
  }
  const std::int64_t before = size_of(descriptor);
  return before < 0 || before >= size ? std::min<std::int64_t>(before, 0)
                                      : ::ftruncate(descriptor, size);
}

std::int64_t list_folder(const std::string& path, std::vector<std::string>& names) noexcept {
  const int listed = reach::list(path, names);
  std::ranges::sort(names);
  return listed;
}

std::int64_t free_bytes(const std::string& path) noexcept {
  const OwnedDescriptor there(reach::open(path, O_PATH | O_CLOEXEC));
  struct statvfs disk{};
  return there.get() >= 0 && ::fstatvfs(there.get(), &disk) == 0
             ? static_cast<std::int64_t>(disk.f_bavail * disk.f_frsize)
             : -1;
}

// The threads that the calling one belongs to; null: it is none of theirs.
constinit thread_local ThreadFiles* t_files = nullptr;

}  // namespace

class ThreadFiles::AtPipe {
 public:
  AtPipe() noexcept {
    if (files_ == nullptr) {
      return;
    }
    const std::lock_guard lock(files_->mutex_);
    ++files_->at_pipes_;
    if (files_->at_pipes_ == files_->workers_.size() && files_->workers_.size() < kThreadsMost &&
        !files_->stopping_) {
      try {
        files_->start_worker(files_->workers_.size() + 1);
      } catch (...) {  // the others wait until one of the pipes is ready
      }
    }
  }
  ~AtPipe() {
    if (files_ != nullptr) {
      const int error = errno;  // of the call
      const std::lock_guard lock(files_->mutex_);
      --files_->at_pipes_;
      errno = error;
    }
  }
  AtPipe(const AtPipe&) = delete;
  AtPipe& operator=(const AtPipe&) = delete;

  // A pipe has no offsets; io_uring does not look at them either.
  static std::int64_t read(const FileOp& op) noexcept {
    const int descriptor = op.request.descriptor;
    const ssize_t moved =
        ::pread(descriptor, op.into(), op.bytes(), static_cast<off_t>(op.offset()));
    if (moved >= 0 || errno != ESPIPE) {
      return moved;
    }
    const AtPipe here;
    return ::read(descriptor, op.into(), op.bytes());
  }
  static std::int64_t write(const FileOp& op) noexcept {
    const int descriptor = op.request.descriptor;
    const ssize_t moved =
        ::pwrite(descriptor, op.from(), op.bytes(), static_cast<off_t>(op.offset()));
    if (moved >= 0 || errno != ESPIPE) {
      return moved;
    }
    const AtPipe here;
    return ::write(descriptor, op.from(), op.bytes());
  }
  static std::int64_t open(const FileRequest& request) {
    struct stat there{};
    if ((open_flags(request) & O_NONBLOCK) != 0 || ::stat(request.path.c_str(), &there) != 0 ||
        !S_ISFIFO(there.st_mode)) {
      return reach::open(request.path, open_flags(request), open_mode(request));
    }
    const AtPipe here;
    return reach::open(request.path, open_flags(request), open_mode(request));
  }

 private:
  ThreadFiles* files_ = t_files;
};

namespace {

constexpr long kInterruptEveryNs = 10'000'000;

// The handler of the signal that interrupts: a signal that is handled ends a system call (EINTR).
void do_nothing(int /*signal*/) {}

// Handles `signal` by do_nothing(); returns false if the program handles it.
bool take_signal(int signal) noexcept {
  struct sigaction now = {};
  if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0) {
    return false;
  }
  if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) {
    struct sigaction nothing = {};
    nothing.sa_handler = &do_nothing;
    return ::sigaction(signal, &nothing, nullptr) == 0;
  }
  return now.sa_handler == &do_nothing;
}

// SIGURG, or the last real-time signal that the program does not handle. (A handler of the program
// may let the call go on, with SA_RESTART.)
int interruption() noexcept {
  int signal = SIGURG;
  for (int next = SIGRTMAX; !take_signal(signal) && next >= SIGRTMIN; --next) {
    signal = next;
  }
  return signal;
}

// A thread has its maker's mask, and a program may block all signals.
int unblock_interruption() noexcept {
  const int signal = interruption();
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  return signal;
}

// As the system calls do: -1, and why in errno.
template <class AtPipe>
std::int64_t system_call(FileOp& op) {
  using Kind = FileRequest::Kind;
  FileRequest& r = op.request;
  switch (r.kind) {
    case Kind::kOpen:
      return AtPipe::open(r);
    case Kind::kRead:
      return AtPipe::read(op);
    case Kind::kWrite:
      return AtPipe::write(op);
    case Kind::kFsync:
      return ::fsync(r.descriptor);
    case Kind::kFsyncFolder:
      return fsync_folder(r.path);
    case Kind::kClose:
      return ::close(r.descriptor);
    case Kind::kRename:
      return reach::rename(r.path, r.new_path);
    case Kind::kExchange:
      return reach::rename(r.path, r.new_path, RENAME_EXCHANGE);
    case Kind::kRemove:
      return reach::remove(r.path);
    case Kind::kRemoveTree:
      return remove_tree(r.path);
    case Kind::kSize:
      return size_of(r.descriptor);
    case Kind::kReserve:
      return reserve(r.descriptor, r.bytes);
    case Kind::kMakeFolder:
      return reach::make_folder(r.path);
    case Kind::kListFolder:
      return list_folder(r.path, r.names);
    case Kind::kRemoveFolder:
      return reach::remove_folder(r.path);
    case Kind::kFreeBytes:
      return free_bytes(r.path);
  }
  errno = EINVAL;
  return -1;
}

}  // namespace

int open_flags(const FileRequest& request) noexcept {
  // O_NONBLOCK: a pipe in the place of a regular file must not hang us (IoFile::check()).
  const bool is_file = request.mode == OpenMode::kReadFile || request.mode == OpenMode::kUpdate;
  const int common = O_CLOEXEC | (is_file ? O_NONBLOCK : 0) | (request.direct ? O_DIRECT : 0);
  switch (request.mode) {
    case OpenMode::kRead:
    case OpenMode::kReadFile:
      return O_RDONLY | common;
    case OpenMode::kCreate:
      return O_WRONLY | O_CREAT | O_TRUNC | common;
    case OpenMode::kReadWrite:
      return O_RDWR | O_CREAT | common;
    case OpenMode::kUpdate:
      return O_RDWR | O_NOFOLLOW | common;
    case OpenMode::kNew:
      return O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | common;
    case OpenMode::kPrivate:
      return O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | common;
    case OpenMode::kNameless:
      return O_RDWR | O_TMPFILE | O_EXCL | common;
  }
  return O_RDONLY | common;
}

unsigned open_mode(const FileRequest& request) noexcept {
  const bool is_private = request.mode == OpenMode::kPrivate || request.mode == OpenMode::kNameless;
  return is_private ? 0600 : 0666;
}

void ThreadFiles::check_threads(int threads, const std::string& name) {
  if (threads < 1) {
    throw user_error("io", "{}: {} threads; file operations need one at least", name, threads);
  }
}

ThreadFiles::ThreadFiles(EventLoop& loop, int threads, const std::string& name)
    : loop_(loop), name_(name) {
  check_threads(threads, name);
  try {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < threads; ++i) {
      start_worker(static_cast<std::size_t>(threads));
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

ThreadFiles::~ThreadFiles() {
  {
    const std::lock_guard lock(mutex_);
    const bool rest = queue_.empty() && std::ranges::all_of(workers_, [](const Worker& worker) {
                        return worker.running == nullptr;
                      });
    TANDEM_CHECK(rest, "file operations outlive their FileIo");
  }
  end_threads();
}

// The caller holds the mutex.
void ThreadFiles::start_worker(std::size_t of) {
  const int number = static_cast<int>(workers_.size());
  Worker& worker = workers_.emplace_back();
  try {
    threads_.push_back(thread::start(name_, number, static_cast<int>(of), [this, &worker, number] {
      work(fmt::format("{} {}", name_, number), worker);
    }));
  } catch (...) {
    workers_.pop_back();
    throw;
  }
}

void ThreadFiles::end_threads() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_there_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  for (const Worker& worker : workers_) {
    if (worker.has_timer) {
      ::timer_delete(worker.timer);
    }
  }
}

void ThreadFiles::submit(FileOp& op) noexcept {
  {
    const std::lock_guard lock(mutex_);
    op.queued = true;
    queue_.push(op);
  }
  work_there_.notify_one();
}

void ThreadFiles::cancel(FileOp& op) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!op.queued) {
      for (Worker& worker : workers_) {
        if (worker.running == &op) {
          interrupt(worker);
        }
      }
      return;
    }
    op.queued = false;
    queue_.take_out(op);
  }
  op.outcome = -ECANCELED;
  loop_.post(op);
}

// One signal could come just before the call that it is to interrupt.
void ThreadFiles::interrupt(Worker& worker) noexcept {
  // The program may handle the signal since the thread began.
  if (const int signal = interruption(); signal != worker.signal) {
    worker.signal = signal;
    if (std::exchange(worker.has_timer, false)) {
      ::timer_delete(worker.timer);
    }
  }
  if (!worker.has_timer) {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = worker.signal;
    event._sigev_un._tid = worker.thread_id;
    worker.has_timer = ::timer_create(CLOCK_MONOTONIC, &event, &worker.timer) == 0;
  }
  if (worker.has_timer) {
    worker.interrupted = true;
    const itimerspec often{.it_interval = {.tv_sec = 0, .tv_nsec = kInterruptEveryNs},
                           .it_value = {.tv_sec = 0, .tv_nsec = 1}};
    ::timer_settime(worker.timer, 0, &often, nullptr);
  }
}

void ThreadFiles::leave_alone(Worker& worker) noexcept {
  worker.running = nullptr;
  if (std::exchange(worker.interrupted, false)) {
    const itimerspec never{};
    ::timer_settime(worker.timer, 0, &never, nullptr);
  }
}

std::int64_t ThreadFiles::call(FileOp& op) noexcept {
  errno = 0;
  const std::int64_t value = system_call<AtPipe>(op);
  return value >= 0 ? value : -errno;
}

void ThreadFiles::work(const std::string& name, Worker& worker) {
  thread::set_name(name);
  t_files = this;
  const int signal = unblock_interruption();
  std::unique_lock lock(mutex_);
  worker.thread_id = ::gettid();
  worker.signal = signal;
  for (;;) {
    work_there_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    FileOp* op = queue_.pop();
    if (op == nullptr) {
      return;
    }
    op->queued = false;
    worker.running = op;
    lock.unlock();
    {
      const TraceSpan span(op->request.verb());
      op->outcome = call(*op);
    }
    lock.lock();
    leave_alone(worker);
    lock.unlock();
    // The op is the awaiting coroutine's again, and may be gone.
    loop_.post_from_any_thread(*op);
    lock.lock();
  }
}

}  // namespace tandem::detail
