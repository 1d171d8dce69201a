// runtime/io/event_fd.hpp — a counter in the kernel that another thread or process can notify, and
// for which a loop can wait.
//
// Thread rule: wait() on the loop's thread, one at a time; notify() from any thread.
// Cancel rule: wait(stop_token) ends with Stopped; the notifications stay counted.
//
//   EventFd bell(loop);
//   start_worker(bell.descriptor());
//   std::uint64_t times = co_await bell.wait();
#pragma once

#include <cstdint>

#include <asio/posix/stream_descriptor.hpp>

#include "runtime/io/asio_await.hpp"

namespace tandem {

class EventFd {
 public:
  explicit EventFd(EventLoop& loop);
  /// Takes over an existing eventfd, which the object closes.
  EventFd(EventLoop& loop, int descriptor) : loop_(loop), stream_(loop.reactor(), descriptor) {}

  /// Wakes the coroutine that waits. Never blocks, never fails; safe in a signal handler.
  void notify(std::uint64_t times = 1) noexcept;
  /// Waits for a notification, and returns how often it was notified since the last wait (at least
  /// once).
  [[nodiscard]] Task<std::uint64_t> wait(StopToken stop = {});
  /// The descriptor for other notifiers: write(descriptor, 8 bytes with a number).
  [[nodiscard]] int descriptor() { return stream_.native_handle(); }

 private:
  EventLoop& loop_;
  asio::posix::stream_descriptor stream_;
  std::uint64_t kept_ = 0;  // notifications that met a stop
};

}  // namespace tandem
