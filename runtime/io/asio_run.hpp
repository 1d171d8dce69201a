// runtime/io/asio_run.hpp — runs a task as an asynchronous operation of Asio.
//
// async_run() is an ordinary asynchronous operation of Asio, and takes any completion token. Its
// signature is void(std::exception_ptr, T), or void(std::exception_ptr) for a Task<>; T needs a
// default constructor, as in all of Asio's signatures with an exception. (An old Asio finds the
// coroutines of clang with -DASIO_HAS_CO_AWAIT -DASIO_HAS_STD_COROUTINE.)
// Thread rule: any thread, while the scope lives; the task runs on the loop, and the handler where
// its executor says.
// Cancel rule: the scope's. The handler is called once the task has ended.
//
//   asio::awaitable<int> theirs(Scope& scope) {
//     co_return co_await async_run(scope, asio::use_awaitable, &ours, 42);
//   }
#pragma once

#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/post.hpp>

#include "runtime/scope.hpp"

namespace tandem {

namespace detail {

template <class Handler, class Factory, class... Args>
Task<> run_for_handler(Handler handler, Held<Factory> factory, Args... args) {
  using T = TaskResult<Factory, Args...>;
  std::exception_ptr error;
  const auto executor =
      asio::get_associated_executor(handler, EventLoop::current().reactor().get_executor());
  if constexpr (std::is_void_v<T>) {
    try {
      co_await std::invoke(factory, std::move(args)...);
    } catch (...) {
      error = std::current_exception();
    }
    asio::post(executor,
               [handler = std::move(handler), error]() mutable { std::move(handler)(error); });
  } else {
    T value{};
    try {
      value = co_await std::invoke(factory, std::move(args)...);
    } catch (...) {
      error = std::current_exception();
    }
    asio::post(executor, [handler = std::move(handler), error, value = std::move(value)]() mutable {
      std::move(handler)(error, std::move(value));
    });
  }
}

template <class T>
struct RunSignature {
  using Type = void(std::exception_ptr, T);
};
template <>
struct RunSignature<void> {
  using Type = void(std::exception_ptr);
};

}  // namespace detail

/// Runs factory(args...), a Task, in `scope`; completes `token` with what it returns or throws.
template <class Token, class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
auto async_run(Scope& scope, Token&& token, Factory factory, Args... args) {
  using Signature = typename detail::RunSignature<TaskResult<Factory, Args...>>::Type;
  return asio::async_initiate<Token, Signature>(
      [&scope](auto handler, Factory f, Args... a) {
        using Handler = std::remove_cvref_t<decltype(handler)>;
        scope.spawn("async_run", &detail::run_for_handler<Handler, Factory, Args...>,
                    std::move(handler), detail::Held<Factory>(f), std::move(a)...);
      },
      token, std::move(factory), std::move(args)...);
}

}  // namespace tandem
