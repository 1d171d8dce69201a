// actors/memory/busy_time.hpp — the time in which at least one of several operations was under way.
//
// Thread rule: the loop's thread.
//
//   BusyTime busy_;   const BusyTime::Working working(busy_);   busy_.seconds();
#pragma once

#include <chrono>

#include "runtime/event_loop.hpp"

namespace tandem {

class BusyTime {
 public:
  /// Counts as one operation under way for as long as it lives.
  class Working {
   public:
    explicit Working(BusyTime& of) noexcept : of_(of) { of_.enter(); }
    ~Working() { of_.leave(); }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;

   private:
    BusyTime& of_;
  };

  void enter() noexcept {
    if (under_way_++ == 0) {
      since_ = EventLoop::current().now();
    }
  }
  void leave() noexcept {
    if (--under_way_ == 0) {
      seconds_ += since();
    }
  }
  [[nodiscard]] double seconds() const noexcept {
    return under_way_ == 0 ? seconds_ : seconds_ + since();
  }

 private:
  [[nodiscard]] double since() const noexcept {
    return std::chrono::duration<double>(EventLoop::current().now() - since_).count();
  }

  int under_way_ = 0;
  TimePoint since_;
  double seconds_ = 0;
};

}  // namespace tandem
