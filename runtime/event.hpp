// runtime/event.hpp — Event (set once or reset and set again) and Latch (counts down to zero), for
// coroutines of one loop.
//
// Any number may wait. set() wakes those that wait at that moment, in their order, through the
// loop's queue; a reset() afterwards does not take that back. An event may be destroyed only while
// nothing waits for it.
// Thread rule: the loop's thread.
// Cancel rule: wait(stop_token) ends at once with Stopped.
//
//   Event ready;   co_await ready;   // elsewhere: ready.set();
#pragma once

#include <cstddef>

#include "runtime/event_loop.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

class Event {
 public:
  class Awaiter;
  static constexpr const char* kAwaitName = "event";

  Event() noexcept = default;
  explicit Event(bool set) noexcept : set_(set) {}
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void set() noexcept;
  void reset() noexcept { set_ = false; }
  [[nodiscard]] bool is_set() const noexcept { return set_; }
  /// Internal: for an event whose coroutines never go on.
  void forget_all() noexcept { first_ = last_ = nullptr; }

  [[nodiscard]] Awaiter wait(StopToken stop = {}) noexcept;
  Awaiter operator co_await() noexcept;

 private:
  bool set_ = false;
  Awaiter* first_ = nullptr;
  Awaiter* last_ = nullptr;
};

class Event::Awaiter {
 public:
  static constexpr const char* kAwaitName = "event";
  Awaiter(Event& event, StopToken stop) noexcept : event_(event), stop_(std::move(stop)) {}

  bool await_ready() noexcept {
    stopped_ = stop_.stop_requested();
    return stopped_ || (event_.set_ && EventLoop::current().may_continue_synchronously());
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    resume_.set(coroutine);
    loop_ = &EventLoop::current();
    if (event_.set_) {
      loop_->post(resume_);  // it went on long enough without a pause: others go first
      return;
    }
    previous_ = event_.last_;
    (previous_ != nullptr ? previous_->next_ : event_.first_) = this;
    event_.last_ = this;
    callback_.awaiter = this;
    stop_.link(callback_);
  }
  void await_resume() const {
    if (stopped_) {
      throw Stopped();
    }
  }

 private:
  friend class Event;
  struct Callback : StopCallback {
    Callback() noexcept
        : StopCallback([](StopCallback& callback) noexcept {
            Awaiter& self = *static_cast<Callback&>(callback).awaiter;
            if (!planted(Bug::kDoubleResume)) {
              self.leave_list();
            }
            self.stopped_ = true;
            self.loop_->post(self.resume_);
          }) {}
    Awaiter* awaiter = nullptr;
  };

  void leave_list() noexcept {
    (previous_ != nullptr ? previous_->next_ : event_.first_) = next_;
    (next_ != nullptr ? next_->previous_ : event_.last_) = previous_;
  }

  Event& event_;
  StopToken stop_;
  bool stopped_ = false;
  detail::ResumeOp resume_;
  EventLoop* loop_ = nullptr;
  Awaiter* previous_ = nullptr;
  Awaiter* next_ = nullptr;
  Callback callback_;
};

inline Event::~Event() {
  TANDEM_CHECK_FOR(detail::waiting_task(first_ != nullptr ? &first_->resume_ : nullptr),
                   first_ == nullptr, "an event died while a coroutine waits for it");
}

inline void Event::set() noexcept {
  set_ = true;
  Awaiter* waiter = first_;
  first_ = nullptr;
  last_ = nullptr;
  while (waiter != nullptr) {
    Awaiter* next = waiter->next_;
    waiter->callback_.unlink();
    waiter->loop_->post(waiter->resume_);
    waiter = next;
  }
}

inline Event::Awaiter Event::wait(StopToken stop) noexcept { return {*this, std::move(stop)}; }
inline Event::Awaiter Event::operator co_await() noexcept { return wait(); }

/// An Event with a counter: it opens when count_down() has brought `count` down to zero.
class Latch {
 public:
  static constexpr const char* kAwaitName = "latch";
  explicit Latch(std::size_t count) noexcept : left_(count), zero_(count == 0) {}
  void count_down(std::size_t by = 1) noexcept {
    TANDEM_CHECK_LE(by, left_, "a latch was counted below zero");
    left_ -= by;
    if (left_ == 0) {
      zero_.set();
    }
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_; }
  [[nodiscard]] Event::Awaiter wait(StopToken stop = {}) noexcept { return zero_.wait(stop); }
  Event::Awaiter operator co_await() noexcept { return wait(); }

 private:
  std::size_t left_;
  Event zero_;
};

}  // namespace tandem
