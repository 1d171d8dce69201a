// runtime/device/ticking_poller.hpp — polls something that cannot wake the loop, while anything
// waits for it.
//
// An awake loop polls it (like every Poller), at most every kSpacing. A timer wakes a sleeping
// loop: first after kFirst, then each time after twice as long, up to kLongest. So the end of a
// wait of length t is noticed at most about t late, never more than kLongest, after a logarithmic
// number of polls; a device that hangs costs a thousand polls a second. Time is the loop's, so with
// a test's clock all this happens in virtual time.
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

  /// Starts to poll for something new: progress() is called from now on, at first often.
  void watch();
  /// Stops polling. progress() may call it.
  void rest() noexcept;
  /// Completes what has come; returns true if there was anything. Never waits.
  virtual bool progress() noexcept = 0;

 private:
  struct Tick : TimerOp {
    explicit Tick(TickingPoller& owner) noexcept;
    TickingPoller& poller;
    bool under_way = false;  // armed, or due and in the loop's queue
  };
  bool poll() noexcept override;
  bool poll_before_sleep() noexcept override;
  bool poll_now() noexcept;
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
