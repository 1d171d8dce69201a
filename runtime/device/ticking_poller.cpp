#include "runtime/device/ticking_poller.hpp"

#include <algorithm>

namespace tandem {

TickingPoller::Tick::Tick(TickingPoller& owner) noexcept
    : TimerOp([](Op& op) noexcept {
        auto& self = static_cast<Tick&>(op);
        self.under_way = false;
        self.poller.tick();
      }),
      poller(owner) {}

TickingPoller::TickingPoller(EventLoop& loop) : loop_(loop) {}

TickingPoller::~TickingPoller() {
  rest();
  loop_.take_back(tick_);
}

void TickingPoller::watch() {
  if (!watching_) {
    watching_ = true;
    loop_.add_poller(*this);
  }
  interval_ = kFirst;
  if (!tick_.under_way || (tick_.armed() && next_tick_ > loop_.now() + interval_)) {
    arm();
  }
}

// The timer is left armed: it does nothing then, and the next watch() often needs it again.
void TickingPoller::rest() noexcept {
  if (watching_) {
    watching_ = false;
    loop_.remove_poller(*this);
  }
}

void TickingPoller::arm() {
  loop_.disarm(tick_);
  next_tick_ = loop_.now() + interval_;
  tick_.under_way = true;
  loop_.arm(tick_, next_tick_);
}

void TickingPoller::tick() noexcept {
  if (!watching_) {
    return;
  }
  if (!poll_now()) {
    interval_ = std::min(interval_ * 2, kLongest);
  }
  if (watching_ && !tick_.under_way) {
    arm();
  }
}

bool TickingPoller::poll_now() noexcept {
  looked_ = loop_.now();
  const bool found = progress();
  if (found) {
    interval_ = kFirst;
  }
  return found;
}

bool TickingPoller::poll() noexcept { return loop_.now() - looked_ >= kSpacing && poll_now(); }

bool TickingPoller::poll_before_sleep() noexcept { return poll(); }

}  // namespace tandem
