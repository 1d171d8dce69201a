// runtime/scope.hpp — the nursery: every task runs in a scope that waits for it.
//
// join() always awaits all tasks. The first failure asks the others to stop (their StopToken), and
// join() rethrows it; the later ones are kept in failures(). After a request to stop, Stopped is no
// failure, nor is ActorClosed: actors end in any order. A scope must be empty when it is destroyed.
// If an exception destroys it while its loop does not run, it asks its tasks to stop and waits for
// them. Failures that came after the last join() or failures() are reported (runtime/report.hpp)
// when the scope is destroyed.
//
// A scope may own actors: start<A>(args...) makes an actor and starts it, join() closes the actors
// when all else has ended, the newest first, and they are destroyed with the scope. Children of an
// owned actor end with it.
//
// Thread rule: the loop's thread (or the owner's while the loop does not run); spawn() from
// any thread, while the scope lives.
//
// Cancel rule: request_stop() only asks; the tasks end by themselves, and no task is destroyed
// while it is under way.
//
//   co_await with_scope([](Scope& scope, int n) -> Task<> {
//     scope.spawn("worker", &work, n);
//     co_return;
//   }, 3);
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/detail/root_task.hpp"
#include "runtime/event.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/name.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace detail {
class Mailbox;
}  // namespace detail

struct TaskFailure {
  const char* task;
  std::exception_ptr error;
  const char* message = nullptr;  // that the task, an actor, was handling
};

class Scope {
 public:
  /// Stops when `parent` stops, too.
  explicit Scope(EventLoop& loop, Name name = "scope", StopToken parent = {})
      : loop_(loop), name_(name.c_str()), stop_(std::move(parent)) {
    enter_loop();
  }
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Starts factory(args...), a Task, when its turn comes in the loop's queue. Factory and
  /// arguments live until it is done.
  template <class Factory, class... Args>
    requires TaskFactory<Factory, Args...>
  void spawn(Name name, Factory factory, Args... args);

  /// Makes the actor A(args...), starts it here and owns it: it is closed by join() and dies with
  /// the scope. Throws what its constructor throws. The loop's thread.
  template <class A, class... Args>
  A& start(Args&&... args);

  void request_stop() noexcept {
    loop_.check_here();
    stop_.request_stop();
  }
  [[nodiscard]] bool stop_requested() const noexcept { return stop_.stop_requested(); }
  [[nodiscard]] StopToken stop_token() noexcept { return stop_.token(); }
  /// For requesting the stop from other threads.
  [[nodiscard]] StopHandle stop_handle() { return stop_.handle(loop_); }

  /// Waits until no task is left, then rethrows the first failure, if there was one. Throws Error
  /// if it is awaited in a task of this scope, which would wait for itself.
  Task<> join();
  class EmptyAwaiter;
  /// Waits until no task is left.
  [[nodiscard]] EmptyAwaiter empty(StopToken stop = {}) noexcept;

  [[nodiscard]] std::size_t running() const noexcept {
    return running_ + arriving_.load(std::memory_order_relaxed);
  }
  /// Every failure, in the order in which they happened. They are then in the caller's care, and
  /// are not reported any more.
  [[nodiscard]] const std::vector<TaskFailure>& failures() const noexcept {
    seen_ = failures_.size();
    return failures_;
  }
  [[nodiscard]] EventLoop& loop() const noexcept { return loop_; }
  [[nodiscard]] const char* name() const noexcept { return name_; }

  /// Notes a failure as if a task of this scope had failed: the tasks are asked to stop.
  void fail(const char* task, std::exception_ptr error, const char* message = nullptr);
  /// One line for each task that still runs: what it waits for, with source lines.
  [[nodiscard]] std::string describe() const;
  /// For code that looks at all tasks: the next scope of the loop, and the newest task.
  [[nodiscard]] Scope* next_on_loop() const noexcept { return next_on_loop_; }
  [[nodiscard]] detail::RootTask::promise_type* first_task() const noexcept { return first_; }

 private:
  friend struct detail::LeaveScope;
  friend class detail::Mailbox;
  friend class Children;
  template <class, class...>
  friend class Actor;

  // An actor that this scope owns.
  struct Owned {
    virtual ~Owned() = default;
    virtual void close() noexcept = 0;
    [[nodiscard]] virtual bool ended() const noexcept = 0;
  };
  template <class A>
  struct OwnedActor final : Owned {
    template <class... Args>
    explicit OwnedActor(Args&&... args) : actor(std::forward<Args>(args)...) {}
    void close() noexcept override { actor.close(); }
    [[nodiscard]] bool ended() const noexcept override { return actor.ended(); }
    A actor;
  };

  template <class Factory, class... Args>
  detail::RootTask::promise_type& spawn_task(Name name, bool is_owned_actor, Factory factory,
                                             Args... args);
  void begin(detail::RootTask::promise_type& task) noexcept;
  void begin_elsewhere(detail::RootTask::promise_type& task) noexcept;
  void join_while_unwinding() noexcept;
  void report_failures() const noexcept;
  // While it is joined: closes the newest of the owned actors that have not ended, if nothing else
  // runs.
  void close_next_owned() noexcept;
  void enter(detail::RootTask::promise_type& task) noexcept;
  void leave(detail::RootTask::promise_type& task) noexcept;
  void trace_begin(detail::RootTask::promise_type& task) noexcept;
  void note_left(const detail::RootTask::promise_type& task) noexcept;
  void enter_loop() noexcept;

  EventLoop& loop_;
  const char* name_;
  StopSource stop_;
  std::size_t running_ = 0;
  detail::RootTask::promise_type* first_ = nullptr;
  Event empty_{true};
  std::vector<TaskFailure> failures_;
  mutable std::size_t seen_ = 0;                 // of failures_: rethrown or looked at
  int exceptions_ = std::uncaught_exceptions();  // exceptions in flight when it was made
  std::atomic<std::size_t> arriving_{0};         // tasks on their way from other threads
  std::vector<std::unique_ptr<Owned>> owned_;
  std::size_t may_be_open_ = 0;    // the actors of owned_ from this index on have ended
  std::size_t owned_running_ = 0;  // tasks of owned actors, and what looks after their children
  bool starts_owned_ = false;      // the actor that is started now is one
  bool joining_ = false;
  Scope* next_on_loop_ = nullptr;
  Scope** link_on_loop_ = nullptr;  // the pointer that points here
};

class Scope::EmptyAwaiter : public Event::Awaiter {
 public:
  static constexpr const char* kAwaitName = "tasks of a scope";
  using Awaiter::Awaiter;
};

inline Scope::EmptyAwaiter Scope::empty(StopToken stop) noexcept { return {empty_, stop}; }

// Every task begins and ends by these three, so they are inline; the rest of the work is not.
inline void Scope::begin(detail::RootTask::promise_type& task) noexcept {
  task.scope = this;
  if (EventLoop::current_or_null() == &loop_) [[likely]] {
    loop_.post_here(task.start_op);
    enter(task);
  } else {
    begin_elsewhere(task);
  }
}

inline void Scope::enter(detail::RootTask::promise_type& task) noexcept {
  task.next_in_scope = first_;
  if (first_ != nullptr) {
    first_->previous_in_scope = &task;
  }
  first_ = &task;
  ++running_;
  if (task.is_owned_actor) [[unlikely]] {
    ++owned_running_;
  }
  empty_.reset();
  if (trace::enabled()) [[unlikely]] {
    trace_begin(task);
  }
}

inline void Scope::leave(detail::RootTask::promise_type& task) noexcept {
  (task.previous_in_scope != nullptr ? task.previous_in_scope->next_in_scope : first_) =
      task.next_in_scope;
  if (task.next_in_scope != nullptr) {
    task.next_in_scope->previous_in_scope = task.previous_in_scope;
  }
  --running_;
  if (running_ == 0 || owned_running_ != 0 || task.trace_id != 0 || planted(Bug::kJoinTooEarly))
      [[unlikely]] {
    note_left(task);
  }
}

namespace detail {

/// The last await of a spawned task: it tells the scope, and goes on to the end.
struct LeaveScope {
  std::exception_ptr error;

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<RootTask::promise_type> self) {
    RootTask::promise_type& task = self.promise();
    TANDEM_CHECK_FOR(task.name, &task.scope->loop() == t_loop, kResumedElsewhere);
    if (error != nullptr) [[unlikely]] {
      fail(task);
    }
    task.scope->leave(task);
    return false;
  }
  void await_resume() const noexcept {}
  void fail(RootTask::promise_type& task);
};

/// The scope that a coroutine runs in; null: none.
inline Scope* scope_of(const TaskPromiseBase& coroutine) noexcept {
  const TaskPromiseBase* promise = &coroutine;
  while (promise != nullptr && promise->scope == nullptr) {
    promise = promise->parent;
  }
  return promise != nullptr ? promise->scope : nullptr;
}

/// Finds the scope that the awaiting coroutine runs in (null: none), without suspending.
struct FindScope {
  Scope* scope = nullptr;

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<TaskPromiseBase> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) noexcept {
    scope = scope_of(self.promise());
    return false;
  }
  Scope* await_resume() const noexcept { return scope; }
};

/// Makes `scope` the one that FindScope finds from here on.
struct UseScope {
  Scope* scope;

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<TaskPromiseBase> Promise>
  bool await_suspend(std::coroutine_handle<Promise> self) const noexcept {
    self.promise().scope = scope;
    return false;
  }
  void await_resume() const noexcept {}
};

template <class Factory, class... Args>
RootTask run_spawned(Held<Factory> factory, Args... args) {
  std::exception_ptr error;
  try {
    co_await std::invoke(factory, std::move(args)...);
  } catch (...) {
    error = std::current_exception();
  }
  co_await LeaveScope{std::move(error)};
}

}  // namespace detail

template <class Factory, class... Args>
detail::RootTask::promise_type& Scope::spawn_task(Name name, bool is_owned_actor, Factory factory,
                                                  Args... args) {
  detail::RootTask task = detail::run_spawned<Factory, Args...>(factory, std::move(args)...);
  task.set_name(name.c_str());
  if (is_owned_actor) {
    task.promise().is_owned_actor = true;
  }
  begin(task.promise());
  return task.promise();
}

template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
void Scope::spawn(Name name, Factory factory, Args... args) {
  (void)spawn_task(name, false, std::move(factory), std::move(args)...);
}

template <class A, class... Args>
A& Scope::start(Args&&... args) {
  auto owned = std::make_unique<OwnedActor<A>>(std::forward<Args>(args)...);
  A& actor = owned->actor;
  owned_.push_back(std::move(owned));
  may_be_open_ = owned_.size();
  starts_owned_ = true;
  actor.start(*this);
  return actor;
}

/// The stop token of the scope the caller runs in (one that never stops outside of scopes):
/// co_await current_stop_token().
inline Task<StopToken> current_stop_token() {
  Scope* scope = co_await detail::FindScope{};
  co_return scope != nullptr ? scope->stop_token() : StopToken();
}

namespace detail {

template <class Factory, class... Args>
Task<TaskResult<Factory, Scope&, Args...>> run_in_scope(Held<Factory> factory, Args... args) {
  using Value = TaskResult<Factory, Scope&, Args...>;
  Scope* outer = co_await FindScope{};
  Scope scope(EventLoop::current(), "scope", outer != nullptr ? outer->stop_token() : StopToken());
  co_await UseScope{&scope};
  Outcome<Value> outcome;
  try {
    if constexpr (std::is_void_v<Value>) {
      co_await std::invoke(factory, scope, std::move(args)...);
      outcome.set_value();
    } else {
      outcome.set_value(co_await std::invoke(factory, scope, std::move(args)...));
    }
  } catch (...) {
    outcome.set_error(std::current_exception());
  }
  if (outcome.failed()) {
    scope.fail("body", outcome.error());
  }
  co_await scope.join();
  co_return outcome.take();
}

}  // namespace detail

/// Runs factory(scope, args...) in a new scope (stopped with the caller's), awaits all that it
/// spawned, and returns its value. The first failure, of the body or of a task, stops the rest and
/// is rethrown when all have ended.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Scope&, Args...>
Task<TaskResult<Factory, Scope&, Args...>> with_scope(Factory factory, Args... args) {
  return detail::run_in_scope<Factory, Args...>(factory, std::move(args)...);
}

}  // namespace tandem
