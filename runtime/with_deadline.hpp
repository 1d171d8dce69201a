// runtime/with_deadline.hpp — a task that has to end by a point in time.
//
// At the deadline the task is asked to stop (current_stop_token() returns its stop token there).
// When it has ended, DeadlineExceeded is thrown: a value that it returns after it was asked to stop
// is dropped, and a failure other than Stopped is rethrown as it is. A task that has ended before
// it was asked, perhaps in the same turn of the loop, keeps its value.
// Thread rule: the loop's thread.
// Cancel rule: as its task, which is never left behind: a task that ignores its stop token delays
// the exception, not the deadline. A task that still runs a second after its deadline is reported
// once (runtime/report.hpp), with the await that keeps it waiting.
//
//   Bytes bytes = co_await with_deadline(100ms, &read_all, path);
//   Task<Bytes> read_all(std::string path) { StopToken stop = co_await current_stop_token(); ... }
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

#include "runtime/deadline.hpp"
#include "runtime/detail/loose_timer.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

namespace detail {

/// Stops a scope when it is due. When it is due a second time, it reports what the scope's tasks
/// wait for.
struct DeadlineTimer final : LooseTimer {
  static constexpr Duration kPatience = std::chrono::seconds(1);

  DeadlineTimer(Scope& watched, const TaskPromiseBase& of) noexcept : scope(watched), task(of) {}
  void be_due() noexcept override;

  Scope& scope;
  const TaskPromiseBase& task;  // that waits for the deadline's task
  bool asked = false;
  bool late = false;
};

/// Finds the promise of the awaiting coroutine, without suspending.
struct FindPromise {
  const TaskPromiseBase* promise = nullptr;

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<TaskPromiseBase> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) noexcept {
    promise = &self.promise();
    return false;
  }
  const TaskPromiseBase& await_resume() const noexcept { return *promise; }
};

/// Throws for a task that the deadline has stopped: the task's own failure, if it has one.
[[noreturn]] void throw_late(const std::exception_ptr& failure);

inline TimePoint due(TimePoint deadline, EventLoop& /*loop*/) { return deadline; }
inline TimePoint due(Duration limit, EventLoop& loop) { return time_after(loop.now(), limit); }

template <class When, class Factory, class... Args>
Task<TaskResult<Factory, Args...>> end_by(When when, Held<Factory> factory, Args... args) {
  using Value = TaskResult<Factory, Args...>;
  EventLoop& loop = EventLoop::current();
  Scope* outer = co_await detail::FindScope{};
  Scope scope(loop, "with_deadline", outer != nullptr ? outer->stop_token() : StopToken());
  co_await detail::UseScope{&scope};
  detail::DeadlineTimer timer(scope, co_await detail::FindPromise{});
  timer.start(loop, due(when, loop));
  Outcome<Value> outcome;
  try {
    if constexpr (std::is_void_v<Value>) {
      co_await std::invoke(factory, std::move(args)...);
      outcome.set_value();
    } else {
      outcome.set_value(co_await std::invoke(factory, std::move(args)...));
    }
  } catch (...) {
    outcome.set_error(std::current_exception());
  }
  co_await scope.empty();
  timer.end();  // due or not: the task has ended before it
  if (timer.late) {
    detail::throw_late(outcome.failed() ? outcome.error() : nullptr);
  }
  co_return outcome.take();
}

}  // namespace detail

/// co_await returns the value of factory(args...), a Task, if it ends before `deadline`.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
Task<TaskResult<Factory, Args...>> with_deadline(TimePoint deadline, Factory factory,
                                                 Args... args) {
  return detail::end_by<TimePoint, Factory, Args...>(deadline, factory, std::move(args)...);
}

/// Does the same, with a deadline of `limit` after the beginning of the task.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
Task<TaskResult<Factory, Args...>> with_deadline(Duration limit, Factory factory, Args... args) {
  return detail::end_by<Duration, Factory, Args...>(limit, factory, std::move(args)...);
}
template <class Rep, class Period, class Factory, class... Args>
  requires(TaskFactory<Factory, Args...> &&
           !std::is_same_v<std::chrono::duration<Rep, Period>, Duration>)
Task<TaskResult<Factory, Args...>> with_deadline(std::chrono::duration<Rep, Period> limit,
                                                 Factory factory, Args... args) {
  return detail::end_by<Duration, Factory, Args...>(saturated(limit), factory, std::move(args)...);
}

}  // namespace tandem
