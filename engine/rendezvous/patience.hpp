// engine/rendezvous/patience.hpp — the time limit of the rendezvous, within which a rank tries
// again and again to reach the others.
//
// Time in which this process is stopped, or its host sleeps, does not count, wherever the process
// then is: in a pause, in a system call or between two. A thread of its own ticks for that, because
// a gap between the calls of pause() can also be a connection that a peer does not answer, and that
// time counts. Thread rule: one thread calls. Internal to RendezvousStore.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/awake_time.hpp"
#include "runtime/clock.hpp"

namespace tandem {

class Patience {
 public:
  /// Throws Error(kRefused) if the system makes no more threads.
  explicit Patience(std::chrono::milliseconds timeout);
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  /// Sleeps for `length` before the next try; returns false, at once, if the time is over.
  [[nodiscard]] bool pause(std::chrono::milliseconds length);
  /// True once, when the wait has lasted so long that the terminal should say for whom.
  [[nodiscard]] bool grows_long();

 private:
  /// Returns the time awake since the construction.
  Duration awake_for();
  void keep_ticking();

  Duration timeout_;
  TimePoint began_;
  bool said_ = false;
  std::mutex mutex_;  // of the members below
  std::condition_variable ends_changed_;
  bool ends_ = false;
  AwakeTime awake_;
  Duration slept_{};
  std::thread ticker_;
};

}  // namespace tandem
