// runtime/detail/root_task.hpp — the coroutines that no coroutine awaits: the one that run()
// drives, and those that a Scope spawns.
//
// A root task starts when its op runs, and ends by itself; the last act of its body tells its maker
// that it has ended. Internal.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <utility>

#include "runtime/detail/op.hpp"
#include "runtime/task.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

class EventLoop;

namespace detail {

extern TANDEM_NEAR_THREAD_LOCAL EventLoop* t_loop;

/// Resumes a coroutine on the loop it is posted to.
struct ResumeOp : Op {
  ResumeOp() noexcept : Op(&ResumeOp::resume) {}

  template <std::derived_from<TaskPromiseBase> Promise>
  void set(std::coroutine_handle<Promise> coroutine) noexcept {
    handle = coroutine;
    promise = &coroutine.promise();
    waiting_since_ns = trace::enabled() ? trace::detail::now_ns() : 0;
  }

  static void resume(Op& op) noexcept;
  /// Resumes it, and records the await that ends and the run that begins in the trace.
  static void resume_traced(ResumeOp& self) noexcept;

  std::coroutine_handle<> handle;
  TaskPromiseBase* promise = nullptr;
  std::int64_t waiting_since_ns = 0;  // 0: it does not wait, or was not traced then
};

/// Returns the name of the task that `waits` (may be null) resumes, for the message of a check.
inline const char* waiting_task(const ResumeOp* waits) noexcept {
  const char* name = waits != nullptr ? waits->promise->task : nullptr;
  return name != nullptr ? name : "a task";
}

class RootTask {
 public:
  struct promise_type : TaskPromiseBase {
    ResumeOp start_op;
    union {
      promise_type* previous_in_scope = nullptr;
      void* result;  // of run()'s task, which has no scope: its MainResult; null: run() is over
    };
    promise_type* next_in_scope = nullptr;
    std::uint64_t trace_id = 0;    // 0: not traced
    bool is_owned_actor = false;   // of an actor that its scope owns, or of its child
    std::int64_t reported_ns = 0;  // the beginning of the wait that a watchdog reported last

    RootTask get_return_object(std::source_location location = std::source_location::current()) {
      made = location;
      where = location;
      const auto handle = std::coroutine_handle<promise_type>::from_promise(*this);
      start_op.set(handle);
      start_op.waiting_since_ns = 0;  // its turn in the queue is no await
      return RootTask(handle);
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    // The frame is freed at the coroutine's end.
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept {
      TANDEM_CHECK(false, "a root task handles its own exceptions");
    }
  };

  [[nodiscard]] promise_type& promise() const noexcept { return handle_.promise(); }
  void set_name(const char* name) const noexcept {
    promise().name = name;
    promise().task = name;
  }
  /// The op that starts the task; to be posted to the loop once.
  [[nodiscard]] Op& start() const noexcept { return handle_.promise().start_op; }

 private:
  explicit RootTask(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

inline constexpr const char* kResumedElsewhere =
    "a task of this loop was resumed on another thread: what it awaits there comes back through a "
    "Completion";

/// The result that EventLoop::run waits for.
template <class T>
struct MainResult {
  EventLoop* loop;
  Outcome<T> outcome = {};
  bool done = false;
};

/// Finds where the awaiting root puts its result; null if another exception has ended the run()
/// that waited for it.
template <class T>
struct FindResult {
  MainResult<T>* result = nullptr;

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<RootTask::promise_type> self) noexcept {
    result = static_cast<MainResult<T>*>(self.promise().result);
    TANDEM_CHECK(result == nullptr || result->loop == t_loop, kResumedElsewhere);
    return false;
  }
  MainResult<T>* await_resume() const noexcept { return result; }
};

/// Reports (runtime/report.hpp) that `what` called `name` has failed and that nothing took its
/// error. Does nothing for null and for Stopped.
void report_unseen(const char* what, const char* name, const std::exception_ptr& error) noexcept;

/// A task factory as a parameter of a header's coroutine. g++ 14 ends with an internal error where
/// such a parameter is a pointer to a function that names a type of an unnamed namespace, and
/// compiles a class that holds the pointer.
template <class F>
struct Held {
  Held(F function_in) noexcept : function(function_in) {}  // implicit, for the callers' sake
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    return std::invoke(function, std::forward<Args>(args)...);
  }

  [[no_unique_address]] F function;
};

/// The coroutine behind EventLoop::run. `factory` and `args` live in its frame until the task is
/// done.
template <class T, class Factory, class... Args>
RootTask run_root(Held<Factory> factory, Args... args) {
  std::exception_ptr error;
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::invoke(factory, std::move(args)...);
      if (MainResult<T>* result = co_await FindResult<T>{}) {
        result->outcome.set_value();
      }
    } else {
      auto&& value = co_await std::invoke(factory, std::move(args)...);
      if (MainResult<T>* result = co_await FindResult<T>{}) {
        result->outcome.set_value(std::forward<T>(value));
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  MainResult<T>* result = co_await FindResult<T>{};
  if (result == nullptr) {
    report_unseen("task", "main", error);
    co_return;
  }
  if (error != nullptr) {
    result->outcome.set_error(std::move(error));
  }
  result->done = true;
}

struct RunningName {
  const char* name = nullptr;
  std::source_location where;
};
/// The name of the operation that runs on this thread, and the last names since its loop looked at
/// the clock; a stall is blamed on them.
struct RunningNames : RunningName {
  static constexpr unsigned kKept = 32;

  void set(const RunningName& now) noexcept { static_cast<RunningName&>(*this) = now; }
  void add(const RunningName& now) noexcept {
    set(now);
    last[count++ % kKept] = now;
  }
  [[nodiscard]] std::span<const RunningName> kept() const noexcept {
    return {last, std::min(count, kKept)};
  }

  RunningName last[kKept];
  unsigned count = 0;
};
extern constinit thread_local RunningNames t_running;

inline void ResumeOp::resume(Op& op) noexcept {
  auto& self = static_cast<ResumeOp&>(op);
  t_running.add({self.promise->task, self.promise->where});
  if (trace::enabled()) [[unlikely]] {
    resume_traced(self);
  } else {
    self.handle.resume();
  }
}

}  // namespace detail
}  // namespace tandem
