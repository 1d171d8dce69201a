// runtime/detail/loose_timer.hpp — a timer whose owner may be destroyed at any time, in constant
// time.
//
// A timer that is due is in the loop's queue, where finding it would take time proportional to the
// queue. So the timer has memory of its own: if it is due when its owner ends, it stays in the
// queue, does nothing at its turn, and frees itself.
// Thread rule: the loop's thread. Internal.
//
//   struct Limit : LooseTimer { void be_due() noexcept override; };
//   limit.start(loop, deadline);   // be_due() may start it again
#pragma once

#include <utility>

#include "runtime/detail/frame_recycler.hpp"
#include "runtime/event_loop.hpp"

namespace tandem::detail {

class LooseTimer {
 public:
  LooseTimer() noexcept = default;
  LooseTimer(const LooseTimer&) = delete;
  LooseTimer& operator=(const LooseTimer&) = delete;

  /// Arms the timer. It is called once, and again only from be_due().
  void start(EventLoop& loop, TimePoint deadline) {
    if (shot_ == nullptr) {
      shot_ = new Shot(*this, loop);
    }
    loop.arm(*shot_, deadline);
  }
  /// Ends the timer: be_due() is not called any more.
  void end() noexcept {
    if (Shot* const shot = std::exchange(shot_, nullptr)) {
      shot->owner = nullptr;
      if (shot->armed()) {
        shot->loop.disarm(*shot);
        delete shot;
      }
    }
  }

 protected:
  ~LooseTimer() { end(); }
  virtual void be_due() noexcept = 0;

 private:
  struct Shot : TimerOp {
    Shot(LooseTimer& of, EventLoop& on) noexcept : TimerOp(&Shot::run), owner(&of), loop(on) {}
    static void* operator new(std::size_t bytes) { return FrameRecycler::allocate(bytes); }
    static void operator delete(void* block, std::size_t bytes) noexcept {
      FrameRecycler::deallocate(block, bytes);
    }
    static void run(Op& op) noexcept {
      auto& self = static_cast<Shot&>(op);
      if (self.owner != nullptr) {
        self.owner->be_due();
      }
      // The owner has ended the timer, or has not started it again.
      if (self.owner == nullptr) {
        delete &self;
      } else if (!self.armed()) {
        self.owner->shot_ = nullptr;
        delete &self;
      }
    }
    LooseTimer* owner;
    EventLoop& loop;
  };

  Shot* shot_ = nullptr;
};

}  // namespace tandem::detail
