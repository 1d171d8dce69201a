// runtime/generator.hpp — Generator<T>: a coroutine that makes values one by one, and may await in
// between.
//
// It runs when next() is awaited, as far as its next co_yield; both are a symmetric transfer. It
// may be destroyed wherever it has yielded: its locals end there, in their order. It is immovable,
// and one coroutine at a time awaits it.
// Thread rule: made, awaited and destroyed on the loop's thread.
// Cancel rule: as for a Task: the operation that it awaits is stopped, and it must not be destroyed
// meanwhile. Its stop token is that of the task that awaits next().
//
//   Generator<Block> blocks(FileIo* files, std::string path) { ... co_yield std::move(block); }
//   while (std::optional<Block> block = co_await all.next()) { ... }
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <source_location>
#include <utility>

#include "runtime/task.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

template <class T>
class [[nodiscard("a generator runs only when its next() is awaited")]] Generator {
  struct GiveBack;

 public:
  using Value = T;

  struct promise_type : TaskPromiseBase {
    Generator get_return_object(std::source_location location = std::source_location::current()) {
      this->made = location;
      this->where = location;
      return Generator(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    GiveBack final_suspend() const noexcept { return {}; }
    GiveBack yield_value(T made_value) {
      value.emplace(std::move(made_value));
      return {};
    }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }

    std::optional<T> value;
    std::exception_ptr error;
  };

  Generator(Generator&&) = delete;
  Generator& operator=(Generator&&) = delete;
  ~Generator() {
    TANDEM_DCHECK(handle_.promise().continuation == nullptr,
                  "a generator was destroyed while what it awaits is in flight");
    handle_.destroy();
  }

  class NextAwaiter {
   public:
    explicit NextAwaiter(std::coroutine_handle<promise_type> generator) noexcept
        : generator_(generator) {}
    bool await_ready() const noexcept { return generator_.done(); }
    template <std::derived_from<TaskPromiseBase> Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> parent) noexcept {
      promise_type& promise = generator_.promise();
      TANDEM_CHECK_FOR(promise.made.function_name(), promise.continuation == nullptr,
                       "one coroutine at a time awaits a generator");
      promise.continuation = parent;
      promise.parent = &parent.promise();
      promise.task = promise.parent->task;
      parent.promise().child = &promise;
      return generator_;
    }
    /// Returns the next value; nullopt if the generator has ended. Rethrows, once, the exception
    /// that ended it.
    std::optional<T> await_resume() {
      promise_type& promise = generator_.promise();
      if (promise.error != nullptr) {
        std::rethrow_exception(std::exchange(promise.error, nullptr));
      }
      return std::exchange(promise.value, std::nullopt);
    }

   private:
    std::coroutine_handle<promise_type> generator_;
  };

  [[nodiscard]] NextAwaiter next() noexcept { return NextAwaiter(handle_); }

 private:
  /// Resumes the coroutine that awaits next().
  struct GiveBack {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
      self.promise().parent = nullptr;
      return std::exchange(self.promise().continuation, nullptr);
    }
    void await_resume() const noexcept {}
  };

  explicit Generator(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

}  // namespace tandem
