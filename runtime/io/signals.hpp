// runtime/io/signals.hpp — lets a coroutine await the process's signals (SIGTERM, SIGINT, ...).
//
// From construction on these signals no longer end the process but queue up here until a coroutine
// waits. Several loops may wait for the same signal, and each learns of it. When the last Signals
// of a number is destroyed, the program's former handling of that signal is in place again. After a
// fork() the child has the program's former handling, and may wait for signals on its own loops.
// (It shares the pipe of Asio's signal sets until it makes its first Signals; an asio::signal_set
// that the child makes before that takes signals that are meant for its parent.)
// Thread rule: the loop's thread.
// Cancel rule: wait(stop_token) ends with Stopped. A signal that meets the stop is kept for the
// next wait().
//
//   Signals signals(loop, {SIGINT, SIGTERM});
//   int which = co_await signals.wait(scope.stop_token());
#pragma once

#include <csignal>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include <asio/signal_set.hpp>

#include "runtime/io/asio_await.hpp"

namespace tandem {

class Signals {
 public:
  Signals(EventLoop& loop, std::initializer_list<int> numbers);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  /// co_await returns the number of the signal that came.
  [[nodiscard]] Task<int> wait(StopToken stop = {});
  /// For code outside of coroutines: calls handler(error_code, number) once.
  template <class Handler>
  void async_wait(Handler handler) {
    set_.async_wait(std::move(handler));
  }

 private:
  void add(int number);
  void remove(int number) noexcept;

  EventLoop& loop_;
  asio::signal_set set_;
  unsigned forks_;  // forks before the process that waits
  std::vector<int> numbers_;
  std::deque<int> kept_;  // signals that met a stop
};

/// Waits for the next signal of this number from now on.
inline Task<> wait_for_signal(int number, StopToken stop = {}) {
  Signals signals(EventLoop::current(), {number});
  co_await signals.wait(stop);
}

}  // namespace tandem
