// runtime/completion.hpp — something finishes on another thread, and a coroutine of the loop learns
// it.
//
// Made on the loop, completed once by any thread (set_value / set_error), awaited once on the loop;
// it must live until it has been awaited. It may complete before it is awaited.
// Cancel rule: cannot be cancelled: the thread that completes it holds a pointer to it, so the
// await lasts until it has.
//
//   Completion<int> done(EventLoop::current());
//   start(&done);                                        // elsewhere: done.set_value(1)
//   int v = co_await done;
#pragma once

#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/task.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

template <class T = void>
class Completion : private Op {
 public:
  static constexpr const char* kAwaitName = "completion";
  explicit Completion(EventLoop& loop) noexcept : Op(&Completion::arrive), loop_(loop) {}

  /// Any thread, once. The object may be gone when this returns.
  template <class... Args>
  void set_value(Args&&... args) noexcept {
    outcome_.set_value(std::forward<Args>(args)...);
    loop_.post_from_any_thread(*this);
  }
  void set_error(std::exception_ptr error) noexcept {
    outcome_.set_error(std::move(error));
    loop_.post_from_any_thread(*this);
  }
  /// Runs `fn` and completes with what it returns or throws.
  template <class Fn>
  void set_from(Fn&& fn) noexcept {
    capture(outcome_, std::forward<Fn>(fn));
    loop_.post_from_any_thread(*this);
  }

  [[nodiscard]] bool arrived() const noexcept { return arrived_; }
  bool await_ready() const noexcept { return arrived_; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    TANDEM_CHECK(resume_.promise == nullptr, "a completion is awaited once");
    resume_.set(coroutine);
  }
  T await_resume() { return outcome_.take(); }

 private:
  static void arrive(Op& op) noexcept {
    auto& self = static_cast<Completion&>(op);
    self.arrived_ = true;
    if (self.resume_.promise != nullptr) {
      detail::ResumeOp::resume(self.resume_);
    }
  }

  EventLoop& loop_;
  Outcome<T> outcome_;
  detail::ResumeOp resume_;
  bool arrived_ = false;
};

}  // namespace tandem
