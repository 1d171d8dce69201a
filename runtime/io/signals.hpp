// runtime/io/signals.hpp — the process's signals (SIGTERM, SIGINT, ...) as something to wait for.
//
// From construction on these signals no longer end the process but queue up here, until one waits.
// Several loops may wait for the same one: each learns of it.
// Thread rule: of the loop's thread.
// Cancel rule: wait(stop_token) ends with Stopped.
//
//   Signals signals(loop, {SIGINT, SIGTERM});
//   int which = co_await signals.wait(scope.stop_token());
#pragma once

#include <csignal>
#include <initializer_list>

#include <asio/signal_set.hpp>

#include "runtime/io/asio_await.hpp"

namespace tandem {

class Signals {
 public:
  Signals(EventLoop& loop, std::initializer_list<int> numbers) : set_(loop.reactor()) {
    for (const int number : numbers) {
      set_.add(number);
    }
  }
  /// The number of the signal that came.
  [[nodiscard]] auto wait(StopToken stop = {}) { return set_.async_wait(use_task(stop)); }

 private:
  asio::signal_set set_;
};

/// Waits for the next signal of this number from now on.
inline Task<> wait_for_signal(int number, StopToken stop = {}) {
  Signals signals(EventLoop::current(), {number});
  co_await signals.wait(stop);
}

}  // namespace tandem
