// runtime/detail/foreign_wake.hpp — a descriptor that becomes ready when a loop embedded in a
// foreign loop has work.
//
// It is the descriptor on which Asio's reactor sleeps, so sockets, the alarm and file completions
// make it ready; for all other work an event that the reactor watches makes it ready.
// Thread rule: ring() from any thread; everything else on the loop's. Internal.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

namespace tandem::detail {

class ForeignWake {
 public:
  /// Throws Error if no descriptor is left.
  explicit ForeignWake(asio::io_context& reactor);
  ForeignWake(const ForeignWake&) = delete;
  ForeignWake& operator=(const ForeignWake&) = delete;

  /// The reactor's descriptor; the reactor owns it.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// Makes the descriptor readable until the reactor has been polled. Never blocks, never fails.
  void ring() noexcept;

 private:
  void watch();

  asio::posix::stream_descriptor event_;
  int event_descriptor_;
  int descriptor_;
};

}  // namespace tandem::detail
