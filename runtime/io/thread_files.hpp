// runtime/io/thread_files.hpp — file operations by a few threads that do one blocking call after
// the other.
//
// A call on a pipe may last as long as the other end likes. It does not hold up other calls: if all
// threads wait for pipes, one more is started, up to kThreadsMost.
// Thread rule: the loop's thread, like every FileBackend.
// Cancel rule: a queued operation leaves the queue at once. A call that runs is interrupted by a
// signal (SIGURG, or a real-time one if the program handles SIGURG), again and again until it
// returns. The threads do not block it, whatever the program blocks. That ends an open() of a FIFO
// that has no writer, and a read from a FIFO. A call that the kernel does not interrupt, as most
// calls on a disk, is awaited.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <ctime>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "runtime/detail/linked_queue.hpp"
#include "runtime/io/file_backend.hpp"

namespace tandem::detail {

class ThreadFiles final : public FileBackend {
 public:
  static constexpr std::size_t kThreadsMost = 64;

  ThreadFiles(EventLoop& loop, int threads, const std::string& name);
  ~ThreadFiles() override;

  void submit(FileOp& op) noexcept override;
  void cancel(FileOp& op) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }

  /// True if no operation waits for a thread: those that have not come back are running. For tests.
  [[nodiscard]] bool queue_is_empty() noexcept {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }

  /// Throws Error if `threads` is less than one.
  static void check_threads(int threads, const std::string& name);
  /// Does the op's call on the calling thread, and returns its outcome.
  static std::int64_t call(FileOp& op) noexcept;

 private:
  // The work of a thread; under the mutex.
  struct Worker {
    pid_t thread_id = 0;
    int signal = 0;  // that interrupts it
    FileOp* running = nullptr;
    bool interrupted = false;  // its timer sends signals
    bool has_timer = false;
    timer_t timer{};
  };

  // While it lives, its thread waits for a pipe.
  class AtPipe;

  void start_worker(std::size_t of);
  void work(const std::string& name, Worker& worker);
  static void interrupt(Worker& worker) noexcept;
  static void leave_alone(Worker& worker) noexcept;
  void end_threads() noexcept;

  EventLoop& loop_;
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable work_there_;
  LinkedQueue<FileOp> queue_;
  bool stopping_ = false;
  std::deque<Worker> workers_;
  std::vector<std::thread> threads_;  // one for each worker
  std::size_t at_pipes_ = 0;          // workers that wait for pipes
};

/// The open(2) flags of a kOpen.
[[nodiscard]] int open_flags(const FileRequest& request) noexcept;
/// The permissions of a file that is made.
[[nodiscard]] unsigned open_mode(const FileRequest& request) noexcept;

}  // namespace tandem::detail
