// runtime/device/ticking_poller.hpp — looks at something that cannot wake the loop, while there is
// something to wait for.
//
// The loop looks while it is awake (as at every Poller), at most every kSpacing. A loop that sleeps
// is woken by a timer: first after kFirst, then after twice the time each, up to kLongest. So a
// wait of length t is noticed at most about t late, never more than kLongest, and costs a logarithm
// of looks; a device that stands still costs a thousand a second. Time is the loop's, so under a
// clock that a test moves all this happens in virtual time.
// Thread rule: the loop's thread.
#pragma once

#include "runtime/event_loop.hpp"

namespace tandem {

class TickingPoller : private Poller {
 public:
  static constexpr Duration kSpacing = std::chrono::microseconds(2);
  static constexpr Duration kFirst = std::chrono::microseconds(20);
  static constexpr Duration kLongest = std::chrono::milliseconds(1);

 protected:
  explicit TickingPoller(EventLoop& loop);
  ~TickingPoller();
  TickingPoller(const TickingPoller&) = delete;
  TickingPoller& operator=(const TickingPoller&) = delete;

  /// Something new is waited for: look() is called from now on, at first often.
  void watch();
  /// Nothing is waited for any more. look() may call it.
  void rest() noexcept;
  /// Ends what has come; true if there was something. Never waits.
  virtual bool look() noexcept = 0;

 private:
  struct Tick : TimerOp {
    explicit Tick(TickingPoller& owner) noexcept;
    TickingPoller& poller;
    bool under_way = false;  // armed, or due and in the loop's queue
  };
  bool poll() noexcept override;
  bool poll_before_sleep() noexcept override;
  bool look_now() noexcept;
  void tick() noexcept;
  void arm();

  EventLoop& loop_;
  Tick tick_{*this};
  bool watching_ = false;
  Duration interval_ = kFirst;
  TimePoint looked_;
  TimePoint next_tick_;
};

}  // namespace tandem
