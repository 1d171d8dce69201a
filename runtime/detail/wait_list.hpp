// runtime/detail/wait_list.hpp — a list of waiting coroutines of one loop, each of which may be
// stopped.
//
// Invariant: a waiter is in the list until take_first() or its stop, never both; then it is posted,
// once. A group is a ring of waiters in several lists: the first that is taken or stopped is
// posted, and the others leave their lists at that moment.
// Thread rule: the loop's thread. Internal to Semaphore, Channel and select().
#pragma once

#include <coroutine>
#include <utility>

#include "runtime/detail/loose_timer.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"

namespace tandem::detail {

class WaitList;

/// The base of an awaiter. Its await_ready() does what can be done at once; its await_suspend()
/// calls go_on_later() or enter().
class ListedWaiter {
 public:
  explicit ListedWaiter(StopToken stop) noexcept : stop_(std::move(stop)) {}

 protected:
  /// Returns true if it was asked to stop already, so that it does not wait.
  bool stop_at_start() noexcept { return stopped_ = stop_.stop_requested(); }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  /// True also if the stop came after the awaited event, before the coroutine's turn.
  [[nodiscard]] bool stop_requested() const noexcept { return stop_.stop_requested(); }
  void throw_if_stopped() const {
    if (stopped_) {
      throw Stopped();
    }
  }
  /// Resumes the coroutine in a later turn: it has what it waited for, and others go first.
  template <class Promise>
  void go_on_later(std::coroutine_handle<Promise> coroutine) noexcept {
    resume_.set(coroutine);
    EventLoop::current().post(resume_);
  }
  template <class Promise>
  void enter(WaitList& list, std::coroutine_handle<Promise> coroutine) noexcept;
  /// True while it waits in a list.
  [[nodiscard]] bool is_listed() const noexcept { return list_ != nullptr; }
  /// Leaves the list and goes on, as after a stop. Called only while it is listed.
  void give_up() noexcept;

 private:
  friend class WaitList;
  friend class ChoiceAwaiter;
  friend struct GiveUpTimer;
  struct Callback : StopCallback {
    Callback() noexcept
        : StopCallback([](StopCallback& callback) noexcept {
            static_cast<Callback&>(callback).waiter->stop();
          }) {}
    ListedWaiter* waiter = nullptr;
  };
  void stop() noexcept;
  void take_others_out() noexcept;

  StopToken stop_;
  bool stopped_ = false;
  ResumeOp resume_;
  EventLoop* loop_ = nullptr;
  WaitList* list_ = nullptr;
  ListedWaiter* previous_ = nullptr;
  ListedWaiter* next_ = nullptr;
  ListedWaiter* next_in_group_ = nullptr;  // null: it is in none
  Callback callback_;
};

/// Makes a waiter give up when it is due, and then sets `late`.
struct GiveUpTimer final : LooseTimer {
  explicit GiveUpTimer(ListedWaiter& of) noexcept : waiter(of) {}
  void be_due() noexcept override {
    if (waiter.is_listed()) {  // else a value has come, or a stop
      late = true;
      waiter.give_up();
    }
  }
  ListedWaiter& waiter;
  bool late = false;
};

class WaitList {
 public:
  WaitList() noexcept = default;
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] ListedWaiter* first() const noexcept { return first_; }
  /// The name of the task that waits longest.
  [[nodiscard]] const char* waiting() const noexcept {
    return waiting_task(first_ != nullptr ? &first_->resume_ : nullptr);
  }
  /// Removes and returns the waiter that waits longest; null if there is none. It goes on when its
  /// turn comes in the loop's queue; a stop does not end its wait any more.
  ListedWaiter* take_first() noexcept {
    ListedWaiter* waiter = first_;
    if (waiter != nullptr) {
      take_out(*waiter);
      waiter->list_ = nullptr;
      waiter->callback_.unlink();
      if (waiter->next_in_group_ != nullptr) [[unlikely]] {
        waiter->take_others_out();
      }
      waiter->loop_->post(waiter->resume_);
    }
    return waiter;
  }

 private:
  friend class ListedWaiter;
  void append(ListedWaiter& waiter) noexcept {
    waiter.previous_ = last_;
    waiter.next_ = nullptr;
    (last_ != nullptr ? last_->next_ : first_) = &waiter;
    last_ = &waiter;
  }
  void take_out(ListedWaiter& waiter) noexcept {
    (waiter.previous_ != nullptr ? waiter.previous_->next_ : first_) = waiter.next_;
    (waiter.next_ != nullptr ? waiter.next_->previous_ : last_) = waiter.previous_;
  }

  ListedWaiter* first_ = nullptr;
  ListedWaiter* last_ = nullptr;
};

template <class Promise>
void ListedWaiter::enter(WaitList& list, std::coroutine_handle<Promise> coroutine) noexcept {
  resume_.set(coroutine);
  loop_ = &EventLoop::current();
  list_ = &list;
  list.append(*this);
  callback_.waiter = this;
  stop_.link(callback_);
}

inline void ListedWaiter::stop() noexcept {
  stopped_ = true;
  give_up();
}

inline void ListedWaiter::give_up() noexcept {
  callback_.unlink();
  std::exchange(list_, nullptr)->take_out(*this);
  if (next_in_group_ != nullptr) {
    take_others_out();
  }
  loop_->post(resume_);
}

inline void ListedWaiter::take_others_out() noexcept {
  for (ListedWaiter* other = next_in_group_; other != this; other = other->next_in_group_) {
    if (other->list_ != nullptr) {
      other->callback_.unlink();
      std::exchange(other->list_, nullptr)->take_out(*other);
    }
  }
}

}  // namespace tandem::detail
