// runtime/completion.hpp — lets a coroutine of the loop await work that finishes on another thread.
//
// A completion is made on the loop, completed once by any thread (set_value / set_error) and
// awaited once on the loop; it may complete before it is awaited. Once it is completed or awaited,
// it must live until the result has arrived on the loop, which its destructor checks. A second
// completion ends the process. An error that arrived and was not awaited is reported
// (runtime/report.hpp).
// Cancel rule: it cannot be cancelled. The completing thread holds a pointer to it, so the await
// lasts until that thread has completed it.
//
//   Completion<int> done(EventLoop::current());
//   start(&done);                                        // elsewhere: done.set_value(1)
//   int v = co_await done;
#pragma once

#include <atomic>
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
  ~Completion() {
    TANDEM_CHECK_FOR(
        loop_.name().c_str(),
        arrived_ || (resume_.promise == nullptr && !completed_.load(std::memory_order_relaxed)),
        "a completion on this loop died before it was awaited");
    if (!taken_ && outcome_.failed()) {
      detail::report_unseen("completion on loop", loop_.name().c_str(), outcome_.error());
    }
  }

  /// Any thread, once. The object may be gone when this returns.
  template <class... Args>
  void set_value(Args&&... args) noexcept {
    begin();
    outcome_.set_value(std::forward<Args>(args)...);
    loop_.post_from_any_thread(*this);
  }
  void set_error(std::exception_ptr error) noexcept {
    begin();
    outcome_.set_error(std::move(error));
    loop_.post_from_any_thread(*this);
  }
  /// Runs `fn` and completes with what it returns or throws.
  template <class Fn>
  void set_from(Fn&& fn) noexcept {
    begin();
    capture(outcome_, std::forward<Fn>(fn));
    loop_.post_from_any_thread(*this);
  }

  [[nodiscard]] bool arrived() const noexcept { return arrived_; }
  bool await_ready() const noexcept { return arrived_; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    TANDEM_CHECK_FOR(loop_.name().c_str(), resume_.promise == nullptr, kAwaitedOnce);
    TANDEM_CHECK_FOR(loop_.name().c_str(), EventLoop::current_or_null() == &loop_,
                     "a completion is awaited on the loop that it was made for");
    resume_.set(coroutine);
  }
  T await_resume() {
    TANDEM_CHECK_FOR(loop_.name().c_str(), !std::exchange(taken_, true), kAwaitedOnce);
    return outcome_.take();
  }

 private:
  static constexpr const char* kAwaitedOnce = "a completion is awaited once";
  void begin() noexcept {
    TANDEM_CHECK_FOR(loop_.name().c_str(), !completed_.exchange(true, std::memory_order_relaxed),
                     "a completion on this loop is completed once");
  }
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
  std::atomic<bool> completed_{false};
  bool arrived_ = false;
  bool taken_ = false;  // its result
};

}  // namespace tandem
