// runtime/supervision/watchdog.hpp — reports tasks that wait too long, once for each wait, with
// their await chains.
//
// It looks at all scopes of a loop every `every`. Waits for messages and for the tasks of a scope
// are not reported: an idle actor is no trouble, and those tasks are looked at themselves. While an
// operation holds the loop, the watchdog does not look: that is a stall (EventLoop::stalls). It
// does not look while the loop does not run either, and that time is not counted.
// Thread rule: the loop's thread (or the owner's while the loop does not run).
//
//   const Watchdog watchdog(loop, {.limit = 30s});
//   "[watchdog] a task waits for 31.2 s: reader (...) <- [completion]"
#pragma once

#include <functional>
#include <string>

#include "runtime/event_loop.hpp"

namespace tandem {

class Watchdog {
 public:
  struct Options {
    Duration limit = std::chrono::seconds(30);
    Duration every{};                                // 0: a quarter of the limit, 1 ms at least
    std::function<void(const std::string&)> report;  // null: a line on stderr
  };
  explicit Watchdog(EventLoop& loop) : Watchdog(loop, Options()) {}
  Watchdog(EventLoop& loop, Options options);
  ~Watchdog() { loop_.take_back(timer_); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  [[nodiscard]] std::uint64_t reports() const noexcept { return reports_; }
  /// Looks at all tasks now.
  void tick();

 private:
  struct Timer : TimerOp {
    explicit Timer(Watchdog& owner) noexcept;
    Watchdog& watchdog;
  };

  void check_task(detail::RootTask::promise_type& root);

  EventLoop& loop_;
  Options options_;
  Timer timer_;
  TimePoint looked_;  // last
  TimePoint awake_since_;
  std::uint64_t reports_ = 0;
};

}  // namespace tandem
