// actors/collectives/nccl/nccl_watchdog.hpp — ends operations that NCCL does not end: polls the
// communicators' errors, enforces deadlines, and aborts.
//
// The watchdog has a thread of its own, which owns no stream and launches nothing, so it works even
// if the loop hangs inside NCCL. ncclCommAbort can hang, too, so it runs on yet another thread. If
// it has not returned after `abort_limit`, the process prints the reason and ends with exit code 4,
// because there is no other way to free the device.
// States: watching -> aborting -> released (permanent): no launched kernel runs any more.
// Thread rule: any thread. Calls on the communicators stand between open_calls() and close_calls().
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "actors/collectives/nccl/nccl_api.hpp"
#include "runtime/awake_time.hpp"
#include "runtime/clock.hpp"

namespace tandem {

class NcclWatchdog {
 public:
  static constexpr std::size_t kComms = 2;
  struct Options {
    const Clock* clock = nullptr;  // of deadlines; null: the real one
    Duration check_every = std::chrono::milliseconds(100);
    Duration abort_limit = std::chrono::seconds(5);
    /// Called with the reason if an abort hangs. If empty, the watchdog prints the reason and ends
    /// the process with exit code 4.
    std::function<void(const std::string& why)> end_process;
    /// Runs a call that may never return. If empty, the call runs on a new thread.
    std::function<void(std::function<void()> abort)> run_abort;
    bool own_thread = true;  // false: the owner calls check(), with times of its own
  };
  struct Failure {
    std::size_t comm;  // kComms: it belongs to no operation
    bool late;         // the operation is past its deadline
    std::string what;
  };

  NcclWatchdog(const NcclApi& api, Options options);
  /// Finalizes and destroys communicators that were not aborted, within abort_limit.
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Watches a communicator from now on. If the others have been aborted, it is aborted, too.
  void adopt(std::size_t comm, void* communicator);
  /// Begins calls of the loop's thread on communicator number `comm`, and returns it; null if it is
  /// aborted or missing. close_calls() must follow in both cases.
  [[nodiscard]] void* open_calls(std::size_t comm);
  void close_calls();

  /// Sets an operation's deadline, which does not count time in which this process was stopped or
  /// its host slept.
  void operation_begins(std::size_t comm, TimePoint deadline) noexcept;
  void operation_ends(std::size_t comm) noexcept;

  /// Returns the first failure, if there is one.
  [[nodiscard]] std::optional<Failure> failure();
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_.load(); }
  /// Aborts all communicators because of `why`.
  void abort(std::string why);
  /// Returns whether the abort has ended, or the process is ending because the abort hangs.
  [[nodiscard]] bool released() const noexcept { return released_.load(); }

  /// Returns whether the abort has ended.
  [[nodiscard]] bool aborted() const noexcept;

  /// Does the checks of the watchdog's thread once, as of `now`.
  void check(TimePoint now);

 private:
  struct Communicators;  // outlives the watchdog if an abort hangs
  struct CommStream {
    bool busy = false;
    TimePoint deadline;
  };
  enum class State : unsigned char { kWatching, kAborting, kReleased };

  void work();
  void ask_communicators();
  void check_deadlines(TimePoint now);
  void fail(std::size_t comm, bool late, std::string what);
  void run_abort(std::function<void()> abort);
  void end_process(const std::string& why);

  const NcclApi& api_;
  Options options_;
  const Clock& clock_;
  std::shared_ptr<Communicators> communicators_;
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> released_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<CommStream, kComms> comms_;
  AwakeTime awake_;
  std::optional<Failure> failure_;
  State state_ = State::kWatching;
  TimePoint abort_deadline_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem
