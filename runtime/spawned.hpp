// runtime/spawned.hpp — the result of a task that was spawned in a scope.
//
// The task runs in the scope like any other, and the scope waits for it; its value, or its failure,
// goes to the holder of the Spawned. If the Spawned was destroyed before, a failure is the scope's.
// If the Spawned is destroyed without having been asked for the result, the failure is reported
// (runtime/report.hpp).
// Thread rule: the loop's thread.
// Cancel rule: result(stop) ends with Stopped, and the task goes on. A result that meets the stop
// is kept for the next result(). The scope's stop reaches the task.
//
//   Spawned<int> answer = spawn_result(scope, "answer", &compute, 42);
//   ...   // meanwhile
//   int value = co_await answer.result();   // what it returned, or threw; once
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

template <class T>
class Spawned;

namespace detail {

template <class T>
struct SpawnedState {
  explicit SpawnedState(Name of) noexcept : name(of.c_str()) {}
  ~SpawnedState() {
    if (outcome.failed() && !taken) {
      report_unseen("task", name, outcome.error());
    }
  }
  SpawnedState(const SpawnedState&) = delete;
  SpawnedState& operator=(const SpawnedState&) = delete;
  const char* name;
  Event done;
  Outcome<T> outcome;
  bool taken = false;
};

template <class T, class Factory, class... Args>
Task<> run_for_result(std::shared_ptr<SpawnedState<T>> state, Held<Factory> factory, Args... args) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::invoke(factory, std::move(args)...);
      state->outcome.set_value();
    } else {
      state->outcome.set_value(co_await std::invoke(factory, std::move(args)...));
    }
  } catch (...) {
    if (state.use_count() == 1) {
      throw;  // the Spawned is gone
    }
    state->outcome.set_error(std::current_exception());
  }
  state->done.set();
}

}  // namespace detail

template <class T>
class [[nodiscard("it holds the task's result; scope.spawn() is for tasks without one")]] Spawned {
 public:
  explicit Spawned(std::shared_ptr<detail::SpawnedState<T>> state) noexcept
      : state_(std::move(state)) {}

  [[nodiscard]] bool done() const noexcept { return state_->done.is_set(); }
  /// co_await returns the task's value or rethrows its exception. Once.
  [[nodiscard]] Task<T> result(StopToken stop = {}) { return take(state_, std::move(stop)); }

 private:
  static Task<T> take(std::shared_ptr<detail::SpawnedState<T>> state, StopToken stop) {
    co_await state->done.wait(stop);
    stop.throw_if_stopped();
    TANDEM_CHECK_FOR(state->name, !std::exchange(state->taken, true),
                     "the result of a spawned task is taken once");
    co_return state->outcome.take();
  }

  std::shared_ptr<detail::SpawnedState<T>> state_;
};

/// Does scope.spawn(name, factory, args...), and keeps the task's result.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
Spawned<TaskResult<Factory, Args...>> spawn_result(Scope& scope, Name name, Factory factory,
                                                   Args... args) {
  using Value = TaskResult<Factory, Args...>;
  auto state = std::make_shared<detail::SpawnedState<Value>>(name);
  scope.spawn(name, &detail::run_for_result<Value, Factory, Args...>, state,
              detail::Held<Factory>(factory), std::move(args)...);
  return Spawned<Value>(std::move(state));
}

}  // namespace tandem
