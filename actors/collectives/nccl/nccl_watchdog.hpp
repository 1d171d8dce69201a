// actors/collectives/nccl/nccl_watchdog.hpp — ends what NCCL does not end: asks the communicators
// how they are, keeps the operations' deadlines, and aborts.
//
// A thread of its own, which owns no stream and launches nothing, so that it goes on when the loop
// stands still inside NCCL. ncclCommAbort can hang, too: it runs on a further thread, and if it is
// not through after `abort_limit` the process says why and ends with exit code 4 (there is no other
// way to get the device back).
// States: watching -> aborting -> released, the last permanently: nothing that was launched runs
// any more.
// Thread rule: all of it from any thread. Calls on the communicators stand between open_calls() and
// close_calls().
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
    Duration look_every = std::chrono::milliseconds(100);
    Duration abort_limit = std::chrono::seconds(5);
    /// Called with a line that says why, when an abort hangs. Empty: prints it and ends the process
    /// with exit code 4.
    std::function<void(const std::string& why)> end_process;
    /// Runs what may never return. Empty: on a thread of its own.
    std::function<void(std::function<void()> abort)> run_abort;
    bool own_thread = true;  // false: its maker calls look(), in a time of its own
  };
  struct Failure {
    std::size_t comm;  // kComms: of no operation
    bool late;         // its operation is over its deadline
    std::string what;
  };

  NcclWatchdog(const NcclApi& api, Options options);
  /// Communicators that were not aborted are finalized and destroyed, within abort_limit.
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// From now on it is watched; if everything is aborted already, so is this.
  void adopt(std::size_t comm, void* communicator);
  /// Begins calls of the loop's thread on the comm stream's communicator; null: it is aborted, or
  /// not there. Always followed by close_calls().
  [[nodiscard]] void* open_calls(std::size_t comm);
  void close_calls();

  /// Time in which this process was stopped, or its host slept, puts the deadline off.
  void operation_begins(std::size_t comm, TimePoint deadline) noexcept;
  void operation_ends(std::size_t comm) noexcept;

  /// The first thing that went wrong, once something has.
  [[nodiscard]] std::optional<Failure> failure();
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_.load(); }
  /// Everything ends, because of `why`.
  void abort(std::string why);
  /// The abort is through (or the process is ending because it is not).
  [[nodiscard]] bool released() const noexcept { return released_.load(); }

  /// The abort itself is through.
  [[nodiscard]] bool aborted() const noexcept;

  /// One turn of its thread, at this time.
  void look(TimePoint now);

 private:
  struct Communicators;  // outlives this in an abort that hangs
  struct CommStream {
    bool busy = false;
    TimePoint deadline;
  };
  enum class State : unsigned char { kWatching, kAborting, kReleased };

  void work();
  void ask_communicators();
  void look_at_deadlines(TimePoint now);
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
