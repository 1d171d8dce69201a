// runtime/detail/wake_tap.hpp — reports which sleeping loops this thread wakes, so that the
// simulator need not check all of its loops after each step of one.
//
// Thread rule: one tap for each thread.
#pragma once

#include <utility>

namespace tandem {
class EventLoop;
}

namespace tandem::detail {

class WakeTap {
 public:
  virtual void woken(EventLoop& loop) noexcept = 0;

 protected:
  ~WakeTap() = default;
};

extern constinit thread_local WakeTap* t_wake_tap;  // null: none

/// While it lives, `tap` is told which loops this thread wakes.
class TappedWakes {
 public:
  explicit TappedWakes(WakeTap& tap) noexcept : outer_(std::exchange(t_wake_tap, &tap)) {}
  ~TappedWakes() { t_wake_tap = outer_; }
  TappedWakes(const TappedWakes&) = delete;
  TappedWakes& operator=(const TappedWakes&) = delete;

 private:
  WakeTap* outer_;
};

}  // namespace tandem::detail
