// runtime/task.hpp — Task<T>: the coroutine type of all asynchronous functions.
//
// A task is lazy (it runs when it is awaited) and immovable (so it is awaited where it was made,
// while its arguments live). It is awaited exactly once, and ends with a value or an exception.
// Awaiting is a symmetric transfer: chains of any length use no stack.
// Thread rule: made, resumed and destroyed on the loop's thread.
// Cancel rule: a task is not cancelled from outside; the operation that it awaits is (StopToken). A
// task must never be destroyed while that operation is in flight.
// Parameters are taken by value, and a lambda that is a coroutine captures nothing: captures live
// in the closure, which may be gone when the coroutine runs on.
//
//   Task<int> twice(int x) { co_await yield(); co_return 2 * x; }
//   int y = co_await twice(21);
#pragma once

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <new>
#include <source_location>
#include <type_traits>
#include <utility>

#include "runtime/detail/frame_recycler.hpp"
#include "runtime/detail/op.hpp"
#include "runtime/util/build.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

class Scope;
namespace detail {
struct LeaveScope;
/// The time at which this thread's loop last looked at its clock; each co_await is stamped with it.
extern TANDEM_NEAR_THREAD_LOCAL std::int64_t t_loop_time_ns;
}  // namespace detail

/// The runtime's knowledge of a suspended coroutine: the links and names from which an await chain
/// is printed.
struct TaskPromiseBase {
  std::coroutine_handle<> continuation;  // what awaits this task; null: nothing did yet
  TaskPromiseBase* parent = nullptr;     // the same, as a promise; null at a root
  TaskPromiseBase* child = nullptr;      // the task this one awaits, if it is a task
  const char* waiting_for = nullptr;     // the name of the awaitable this one awaits, if it has one
  const char* name = nullptr;            // given name; null: the function's name is in `made`
  const char* task = nullptr;            // name of the root this runs under
  Scope* scope = nullptr;                // of a root: the scope it was spawned in
  std::source_location made;             // the coroutine's function
  std::source_location where;            // its last co_await
  std::int64_t since_ns = kNeverAwaited;  // ... and when that was
  static constexpr std::int64_t kNeverAwaited = INT64_MIN;

  static void* operator new(std::size_t bytes) { return FrameRecycler::allocate(bytes); }
  static void operator delete(void* block, std::size_t bytes) noexcept {
    FrameRecycler::deallocate(block, bytes);
  }
  // Code that is compiled with -fcoro-aligned-allocation calls it, with the alignment of the
  // frame's variables. There is no operator delete with an alignment: without that option clang
  // would choose it for results that ask for more than 16 bytes, and refuse its own choice.
  static void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return FrameRecycler::allocate(bytes, alignment);
  }

  /// Every co_await passes here: it notes the source line, for the printed chain.
  template <class Awaitable>
  Awaitable&& await_transform(Awaitable&& awaitable, std::source_location location =
                                                         std::source_location::current()) noexcept {
    where = location;
    since_ns = detail::t_loop_time_ns;
    child = nullptr;
    if constexpr (requires { std::remove_cvref_t<Awaitable>::kAwaitName; }) {
      waiting_for = std::remove_cvref_t<Awaitable>::kAwaitName;
    } else {
      waiting_for = nullptr;
    }
    return std::forward<Awaitable>(awaitable);
  }
};

template <class T = void>
class Task;

namespace detail {

struct FinalAwaiter {
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) const noexcept {
    return self.promise().continuation;
  }
  void await_resume() const noexcept {}
};

template <class T>
struct TaskPromiseResult : TaskPromiseBase {
  Outcome<T> outcome;
  template <class U = T>
    requires std::is_constructible_v<T, U&&> || std::is_reference_v<T>
  void return_value(U&& value) {
    outcome.set_first(std::forward<U>(value));
  }
};

template <>
struct TaskPromiseResult<void> : TaskPromiseBase {
  Outcome<void> outcome;
  void return_void() noexcept { outcome.set_first(); }
};

}  // namespace detail

template <class T>
class [[nodiscard("a Task runs only when it is awaited")]] Task {
 public:
  using Value = T;

  struct promise_type : detail::TaskPromiseResult<T> {
    Task get_return_object(std::source_location location = std::source_location::current()) {
      this->made = location;
      this->where = location;
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    detail::FinalAwaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { this->outcome.set_error(std::current_exception()); }
  };

  Task(Task&&) = delete;
  Task& operator=(Task&&) = delete;
  ~Task() {
    TANDEM_DCHECK(handle_.promise().continuation == nullptr || handle_.done(),
                  "a task was destroyed while what it awaits is in flight");
    handle_.destroy();
  }

  /// Names the task in traces and await chains; `name` is static or outlives the task.
  Task& named(const char* name) & noexcept {
    handle_.promise().name = name;
    return *this;
  }
  Task&& named(const char* name) && noexcept {
    handle_.promise().name = name;
    return std::move(*this);
  }

  class Awaiter {
   public:
    explicit Awaiter(std::coroutine_handle<promise_type> task) noexcept : task_(task) {}
    bool await_ready() const noexcept { return false; }
    template <std::derived_from<TaskPromiseBase> Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> parent) noexcept {
      promise_type& promise = task_.promise();
      TANDEM_CHECK_FOR(promise.made.function_name(), promise.continuation == nullptr,
                       "a task is awaited exactly once");
      promise.continuation = parent;
      promise.parent = &parent.promise();
      promise.task = promise.parent->task;
      parent.promise().child = &promise;
      return task_;
    }
    T await_resume() { return task_.promise().outcome.take(); }

   private:
    std::coroutine_handle<promise_type> task_;
  };

  Awaiter operator co_await() && noexcept { return Awaiter(handle_); }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

namespace detail {

template <class T>
struct IsTask : std::false_type {};
template <class T>
struct IsTask<Task<T>> : std::true_type {};

}  // namespace detail

template <class T>
concept AnyTask = detail::IsTask<std::remove_cvref_t<T>>::value;

/// A callable that makes a task and carries no state: a function, a member function, or a lambda
/// without captures.
/// Captures would live in the closure, not in the coroutine's frame; pass what it needs as
/// arguments.
template <class F, class... Args>
concept TaskFactory =
    std::invocable<F, Args...> && AnyTask<std::invoke_result_t<F, Args...>> &&
    (std::is_empty_v<std::remove_cvref_t<F>> || std::is_pointer_v<std::decay_t<F>> ||
     std::is_member_function_pointer_v<std::remove_cvref_t<F>>);

template <class F, class... Args>
using TaskResult = typename std::remove_cvref_t<std::invoke_result_t<F, Args...>>::Value;

}  // namespace tandem
