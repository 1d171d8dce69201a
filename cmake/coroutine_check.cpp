// cmake/coroutine_check.cpp — whether the compiler destroys the temporaries of co_await expressions
// once each, and at the right time.
//
// Compiler.cmake runs it when it configures, for compilers other than clang. It prints the first
// shape of expression with a fault and exits with 1. g++ 12 destroys some temporaries twice.
#include <coroutine>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace {

int alive = 0;
int faults = 0;

// Counts the objects that live, and finds one that is destroyed twice by its own address.
struct Counted {
  Counted() : self(this) { ++alive; }
  Counted(const Counted&) : self(this) { ++alive; }
  Counted(Counted&&) noexcept : self(this) { ++alive; }
  Counted& operator=(const Counted&) = delete;
  Counted& operator=(Counted&&) = delete;
  ~Counted() {
    faults += self != this ? 1 : 0;
    self = nullptr;
    --alive;
  }
  const Counted* self;
};

struct Task {
  struct promise_type {
    std::coroutine_handle<> continuation = std::noop_coroutine();
    std::exception_ptr error;
    Task get_return_object() {
      return Task{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
        return self.promise().continuation;
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
  };
  explicit Task(std::coroutine_handle<promise_type> made) : handle(made) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { handle.destroy(); }
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiting) const noexcept {
    handle.promise().continuation = waiting;
    return handle;
  }
  void await_resume() const {
    if (handle.promise().error) {
      std::rethrow_exception(handle.promise().error);
    }
  }
  std::coroutine_handle<promise_type> handle;
};

struct Pair {
  Counted first;
  Counted second;
};
struct Named {
  std::string name;
  std::shared_ptr<int> value;
  Counted counted;
};

Task take(Counted) { co_return; }
Task take_pair(Pair) { co_return; }
Task take_named(Named) { co_return; }
Task take_reference(const Counted&) { co_return; }
Task fail(Counted) {
  throw 1;
  co_return;
}
template <class Function>
Task call(Function function) {
  function();
  co_return;
}

Task by_value() { co_await take(Counted()); }
Task by_reference() { co_await take_reference(Counted()); }
Task aggregate() { co_await take_pair({Counted(), Counted()}); }
Task designated() {
  auto value = std::make_shared<int>(1);
  co_await take_named({.name = std::string(40, 'x'), .value = value, .counted = Counted()});
  faults += value.use_count() != 1 ? 1 : 0;
}
Task captured() {
  Counted counted;
  co_await call([counted, more = Counted()] { faults += counted.self == nullptr ? 1 : 0; });
}
Task chosen(bool which) {
  if (which) {
    which ? co_await take(Counted()) : co_await take_pair({Counted(), Counted()});
  }
}
Task thrown() {
  try {
    co_await fail(Counted());
  } catch (int) {
    co_return;
  }
  ++faults;
}

bool holds(const char* shape, Task task) {
  task.handle.resume();
  const bool done = task.handle.done();
  if (!done || alive != 0 || faults != 0) {
    std::printf("%s\n", shape);
    return false;
  }
  return true;
}

}  // namespace

int main() {
  // The tasks end before their frames do, and with them all that they made.
  const bool all =
      holds("an argument by value", by_value()) &&
      holds("an argument by reference", by_reference()) && holds("an aggregate", aggregate()) &&
      holds("an aggregate with designated members", designated()) &&
      holds("a lambda with captures", captured()) &&
      holds("a conditional expression", chosen(true)) && holds("an exception", thrown());
  return all ? 0 : 1;
}
