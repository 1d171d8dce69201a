// runtime/with_deadline.hpp — a task that has to end by a point in time.
//
// At the deadline the task is asked to stop (its stop token is what current_stop_token() finds
// there). When it has ended, DeadlineExceeded is thrown: a value that came too late is dropped, a
// failure other than Stopped is rethrown as it is.
// Thread rule: of the loop's thread.
// Cancel rule: as its task, which is never left behind: one that ignores its stop token delays the
// exception, not the deadline.
//
//   Bytes bytes = co_await with_deadline(100ms, &read_all, path);
//   Task<Bytes> read_all(std::string path) { StopToken stop = co_await current_stop_token(); ... }
#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "runtime/deadline.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

namespace detail {

/// Stops a scope when it is due.
struct DeadlineTimer : TimerOp {
  explicit DeadlineTimer(Scope& watched) noexcept
      : TimerOp([](Op& op) noexcept {
          auto& self = static_cast<DeadlineTimer&>(op);
          self.fired = true;
          // otherwise something else has stopped it before
          self.late = !self.scope.stop_requested();
          self.scope.request_stop();
        }),
        scope(watched) {}
  Scope& scope;
  bool fired = false;
  bool late = false;
};

/// What comes of a task that the deadline has stopped: its own failure, if it has one.
[[noreturn]] void throw_late(const std::exception_ptr& failure);

}  // namespace detail

/// co_await: what factory(args...), a Task, returns, if it does so before `deadline`.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
Task<TaskResult<Factory, Args...>> with_deadline(TimePoint deadline, Factory factory,
                                                 Args... args) {
  using Value = TaskResult<Factory, Args...>;
  EventLoop& loop = EventLoop::current();
  Scope* outer = co_await detail::FindScope{};
  Scope scope(loop, "with_deadline", outer != nullptr ? outer->stop_token() : StopToken());
  co_await detail::UseScope{&scope};
  detail::DeadlineTimer timer(scope);
  loop.arm(timer, deadline);
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
  const bool is_due = !timer.armed();
  loop.disarm(timer);
  while (is_due && !timer.fired) {
    co_await yield();  // it is in the loop's queue: the deadline has passed, and that counts
  }
  if (timer.late) {
    detail::throw_late(outcome.failed() ? outcome.error() : nullptr);
  }
  co_return outcome.take();
}

/// The same, `limit` from now.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
Task<TaskResult<Factory, Args...>> with_deadline(Duration limit, Factory factory, Args... args) {
  const TimePoint deadline = EventLoop::current().now() + limit;
  co_return co_await with_deadline(deadline, std::move(factory), std::move(args)...);
}

}  // namespace tandem
