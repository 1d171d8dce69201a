// runtime/sleep.hpp — lets others run: yield(), sleep_for(), sleep_until().
//
// Thread rule: the loop's thread.
// A sleep whose duration is too long for the clock never ends.
// Cancel rule: a sleep with a StopToken ends at once with Stopped; yield() is not cancelled.
//
//   co_await yield();
//   co_await sleep_for(10ms);
//   co_await sleep_until(deadline, scope.stop_token());
#pragma once

#include <chrono>
#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"

namespace tandem {

namespace detail {

class YieldAwaiter {
 public:
  static constexpr const char* kAwaitName = "yield";
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    resume_.set(coroutine);
    EventLoop::current().post(resume_);
  }
  void await_resume() const noexcept {}

 private:
  ResumeOp resume_;
};

class SleepAwaiter {
 public:
  static constexpr const char* kAwaitName = "sleep";
  SleepAwaiter(TimePoint deadline, StopToken stop) noexcept
      : deadline_(deadline), stop_(std::move(stop)) {}

  bool await_ready() noexcept { return stopped_ = stop_.stop_requested(); }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    timer_.resume.set(coroutine);
    timer_.loop = &EventLoop::current();
    timer_.loop->arm(timer_, deadline_);
    callback_.awaiter = this;
    stop_.link(callback_);
  }
  void await_resume() const {
    if (stopped_) {
      throw Stopped();
    }
  }

 private:
  struct Timer : TimerOp {
    explicit Timer(SleepAwaiter& owner) noexcept
        : TimerOp([](Op& op) noexcept {
            auto& self = static_cast<Timer&>(op);
            self.awaiter.callback_.unlink();
            ResumeOp::resume(self.resume);
          }),
          awaiter(owner) {}
    SleepAwaiter& awaiter;
    ResumeOp resume;
    EventLoop* loop = nullptr;
  };
  struct Callback : StopCallback {
    Callback() noexcept
        : StopCallback([](StopCallback& callback) noexcept {
            SleepAwaiter& self = *static_cast<Callback&>(callback).awaiter;
            if (self.timer_.armed()) {  // otherwise it has fired and is in the queue
              self.timer_.loop->disarm(self.timer_);
              self.stopped_ = true;
              self.timer_.loop->post(self.timer_);
            }
          }) {}
    SleepAwaiter* awaiter = nullptr;
  };

  TimePoint deadline_;
  StopToken stop_;
  bool stopped_ = false;
  Timer timer_{*this};
  Callback callback_;
};

}  // namespace detail

/// co_await lasts until everything that is queued on this loop now has run.
[[nodiscard]] inline detail::YieldAwaiter yield() noexcept { return {}; }

[[nodiscard]] inline detail::SleepAwaiter sleep_until(TimePoint deadline,
                                                      StopToken stop = {}) noexcept {
  return {deadline, std::move(stop)};
}

[[nodiscard]] inline detail::SleepAwaiter sleep_for(Duration duration,
                                                    StopToken stop = {}) noexcept {
  return {time_after(EventLoop::current().now(), duration), std::move(stop)};
}
template <class Rep, class Period>
[[nodiscard]] detail::SleepAwaiter sleep_for(std::chrono::duration<Rep, Period> duration,
                                             StopToken stop = {}) noexcept {
  return sleep_for(saturated(duration), std::move(stop));
}

}  // namespace tandem
