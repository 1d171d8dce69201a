// runtime/detail/foreign_wake.hpp — the descriptor by which a foreign loop learns that a loop
// inside it has something to do.
//
// It is the one that Asio's reactor sleeps on, where sockets, the alarm and file completions
// arrive; an event that the reactor watches, too, makes it ready for everything else. Thread rule:
// ring() from any thread; everything else on the loop's. Internal.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

namespace tandem::detail {

class ForeignWake {
 public:
  /// Throws Error where no descriptor is left.
  explicit ForeignWake(asio::io_context& reactor);
  ForeignWake(const ForeignWake&) = delete;
  ForeignWake& operator=(const ForeignWake&) = delete;

  /// The reactor's descriptor; the reactor owns it.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// It can be read until the reactor has been polled. Never blocks, never fails.
  void ring() noexcept;

 private:
  void watch();

  asio::posix::stream_descriptor event_;
  int event_descriptor_;
  int descriptor_;
};

}  // namespace tandem::detail
