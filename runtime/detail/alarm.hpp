// runtime/detail/alarm.hpp — ends a loop's sleep in its reactor at a set time.
//
// It is a timerfd that the reactor watches: setting it again is one system call without side
// effects, whereas Asio's timers cancel an operation, whose completion then ends the next sleep.
// The timerfd is made when the loop first runs on the real clock: thousands of simulated loops
// never sleep, and a loop that has run keeps its number of descriptors.
// Thread rule: the loop's thread. Internal.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

namespace tandem::detail {

class Alarm {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  explicit Alarm(asio::io_context& reactor) noexcept : reactor_(reactor) {}
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// Makes the timerfd if there is none. Throws Error if no descriptor is left for it.
  void prepare();
  /// Sets the alarm to `at_ns` on steady_clock; kNever switches it off. Throws as prepare().
  void set(std::int64_t at_ns);

 private:
  void watch();

  asio::io_context& reactor_;
  std::optional<asio::posix::stream_descriptor> timer_;
  std::int64_t set_ns_ = kNever;
};

}  // namespace tandem::detail
