// runtime/io/asio_await.hpp — Asio's operations as awaitables of ours: the completion token
// use_task.
//
// The operation starts when it is awaited; its handler comes back through the loop's queue. Handler
// memory is the loop's recycled memory: nothing is allocated per operation after the first ones.
// The socket and the buffer of the operation live until the await returns.
//   co_await socket.async_read_some(buffer, use_task)
//       the value, or a std::tuple of several; an error is thrown as asio::system_error
//   co_await socket.async_read_some(buffer, use_task_result)
//       {error_code, values...}, or the error_code alone
//   ...(buffer, use_task(stop)), ...(buffer, use_task_result(stop))
//       can be stopped
// Every signature is taken: void(), void(values...), void(error_code, values...) and
// void(exception_ptr, values...), which throws the exception (asio::co_spawn of an awaitable).
// A value is moved or copied into the awaiter, unless the signature says T&: then the await returns
// the reference with which the handler was called, whose object must live until then.
// Asio's adapters take the token as well: as_tuple(use_task), redirect_error(use_task, error),
// bind_executor, bind_allocator, and bind_cancellation_slot, whose slot takes the place of a stop
// token's.
// If an operation drops its handler uncalled (because the object that it ran on has gone), the
// await throws an Error. If its initiation throws, the await throws that exception. (The loss of a
// handler that was copied is not noticed.)
// Thread rule: the loop's thread. An Asio object on another io_context than loop.reactor() works
// without a stop token, which is not passed between threads.
// Cancel rule: a stop request goes through Asio's cancellation slot. The await ends when the
// operation has ended, with Stopped if the request broke it off. A transfer that is awaited with
// use_task_result(stop) returns {operation_aborted, bytes moved} instead, so that no moved byte is
// forgotten.
//
//   asio::ip::tcp::socket socket(loop.reactor());
//   std::size_t n =
//       co_await socket.async_read_some(asio::buffer(bytes), use_task(scope.stop_token()));
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <asio/async_result.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/error.hpp>
#include <asio/redirect_error.hpp>
#include <asio/system_error.hpp>

#include "runtime/event_loop.hpp"
#include "runtime/io/recycling_allocator.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// The completion token. If kThrows is false, the await returns the error code, too.
template <bool kThrows>
struct UseTask {
  StopToken stop = {};
  [[nodiscard]] constexpr UseTask operator()(StopToken token) const noexcept { return {token}; }
};
inline constexpr UseTask<true> use_task{};
inline constexpr UseTask<false> use_task_result{};

namespace detail {

/// A cancellation signal for one operation. Signals keep the memory of their slots, so each thread
/// keeps them for its next operations.
class CancelSignal {
 public:
  CancelSignal();
  ~CancelSignal();
  CancelSignal(const CancelSignal&) = delete;
  CancelSignal& operator=(const CancelSignal&) = delete;

  [[nodiscard]] asio::cancellation_slot slot() noexcept { return kept_->signal.slot(); }
  void emit() { kept_->signal.emit(asio::cancellation_type::terminal); }

  struct Kept {
    asio::cancellation_signal signal;
    Kept* next = nullptr;
  };

 private:
  Kept* kept_;
};

template <class Result>
inline constexpr bool kIsAsioError =
    std::is_same_v<std::remove_cvref_t<Result>, asio::error_code> ||
    std::is_same_v<std::remove_cvref_t<Result>, std::exception_ptr>;
/// The type as which the await holds a result: a T& as it is, all others by value (a const T& may
/// be a temporary).
template <class Result>
using HeldResult = std::conditional_t<std::is_lvalue_reference_v<Result> &&
                                          !std::is_const_v<std::remove_reference_t<Result>> &&
                                          !kIsAsioError<Result>,
                                      Result, std::decay_t<Result>>;

/// Stands for the error of an operation whose signature has none.
struct NoAsioError {};

/// The values of an operation, and the type that its await returns: void, the one value, or a
/// tuple.
template <class... Results>
struct AsioValues {
  using Values = std::tuple<Results...>;
  using Plain = Values;
};
template <class Result>
struct AsioValues<Result> {
  using Values = std::tuple<Result>;
  using Plain = Result;
};
template <>
struct AsioValues<> {
  using Values = std::tuple<>;
  using Plain = void;
};

template <class... Results>
struct AsioSignature : AsioValues<Results...> {
  using Error = NoAsioError;
};
template <class... Results>
struct AsioSignature<asio::error_code, Results...> : AsioValues<Results...> {
  using Error = asio::error_code;
};
template <class... Results>
struct AsioSignature<std::exception_ptr, Results...> : AsioValues<Results...> {
  using Error = std::exception_ptr;
};

/// True if a cancellation broke the operation off.
[[nodiscard]] inline bool is_aborted(const asio::error_code& error) noexcept {
  return error == asio::error::operation_aborted;
}
[[nodiscard]] bool is_aborted(const std::exception_ptr& error) noexcept;
/// Returns the Error of an operation whose handler was destroyed uncalled.
[[nodiscard]] std::exception_ptr dropped_handler_error() noexcept;

template <bool kThrows, class Initiation, class Arguments, class Signature>
class AsioAwaiter {
  using Error = typename Signature::Error;
  using Values = typename Signature::Values;
  static constexpr std::size_t kValues = std::tuple_size_v<Values>;
  static constexpr bool kFails = !std::is_same_v<Error, NoAsioError>;

 public:
  static constexpr const char* kAwaitName = "asio";

  AsioAwaiter(StopToken stop, Initiation initiation, Arguments arguments)
      : stop_(std::move(stop)),
        initiation_(std::move(initiation)),
        arguments_(std::move(arguments)) {}
  AsioAwaiter(const AsioAwaiter&) = delete;
  AsioAwaiter& operator=(const AsioAwaiter&) = delete;

  bool await_ready() const noexcept { return stop_.stop_requested(); }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    loop_ = &EventLoop::current();
    resume_.set(coroutine);
    if (stop_.can_stop()) {
      signal_.emplace();
      stop_.link(on_stop_);
    }
    try {
      std::apply(
          [this](auto&&... arguments) {
            std::move(initiation_)(Handler(*this), std::move(arguments)...);
          },
          std::move(arguments_));
    } catch (...) {  // its handler was dropped, or will be: then the coroutine goes on
      thrown_ = std::current_exception();
    }
  }
  decltype(auto) await_resume() {
    if (thrown_ != nullptr) {
      std::rethrow_exception(thrown_);
    }
    if (!values_) {
      throw Stopped();  // before it began
    }
    if constexpr (kFails) {
      const bool counts = !kThrows && kValues > 0;
      if (!counts && error_ && is_aborted(error_) && stop_.stop_requested()) {
        throw Stopped();
      }
    }
    if constexpr (kFails && !kThrows) {
      return with_error();
    } else {
      if constexpr (std::is_same_v<Error, asio::error_code>) {
        if (error_) {
          throw asio::system_error(error_);
        }
      } else if constexpr (kFails) {
        if (error_ != nullptr) {
          std::rethrow_exception(error_);
        }
      }
      return plain();
    }
  }

 private:
  // Asio moves the handler about and calls it once. A handler that was copied does not notice if it
  // is never called.
  struct Handler {
    using allocator_type = RecyclingAllocator<void>;
    using cancellation_slot_type = asio::cancellation_slot;
    explicit Handler(AsioAwaiter& owner) noexcept : awaiter(&owner) {}
    Handler(const Handler& other) noexcept : awaiter(other.awaiter), is_only(false) {
      other.is_only = false;
    }
    Handler(Handler&& other) noexcept
        : awaiter(std::exchange(other.awaiter, nullptr)), is_only(other.is_only) {}
    Handler& operator=(Handler other) noexcept {
      std::swap(awaiter, other.awaiter);
      std::swap(is_only, other.is_only);
      return *this;
    }
    ~Handler() {
      if (awaiter != nullptr && is_only) [[unlikely]] {
        awaiter->drop();
      }
    }
    [[nodiscard]] allocator_type get_allocator() const noexcept { return {}; }
    [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept {
      return awaiter != nullptr && awaiter->signal_ ? awaiter->signal_->slot()
                                                    : asio::cancellation_slot();
    }
    template <class... Results>
    void operator()(Results&&... results) noexcept {
      TANDEM_CHECK(awaiter != nullptr, "the handler of an Asio operation is called once");
      AsioAwaiter& mine = *std::exchange(awaiter, nullptr);
      if constexpr (kFails) {
        mine.finish_with(std::forward<Results>(results)...);
      } else {
        mine.finish(std::forward<Results>(results)...);
      }
    }
    AsioAwaiter* awaiter;  // null: it was called, or moved from
    mutable bool is_only = true;
  };
  struct OnStop : StopCallback {
    explicit OnStop(AsioAwaiter& owner) noexcept
        : StopCallback([](StopCallback& self) noexcept {
            static_cast<OnStop&>(self).awaiter.signal_->emit();
          }),
          awaiter(owner) {}
    AsioAwaiter& awaiter;
  };

  template <class... Results>
  void finish_with(Error error, Results&&... results) noexcept {
    error_ = std::move(error);
    finish(std::forward<Results>(results)...);
  }
  template <class... Results>
  void finish(Results&&... results) noexcept {
    on_stop_.unlink();
    try {
      values_.emplace(std::forward<Results>(results)...);
    } catch (...) {
      thrown_ = std::current_exception();
    }
    go_on();
  }
  void go_on() noexcept {
    if (EventLoop::current_or_null() == loop_) [[likely]] {
      loop_->post(resume_);
      return;
    }
    TANDEM_CHECK(!stop_.can_stop(),
                 "an Asio object that is waited for with a stop token is on its loop's reactor");
    loop_->post_from_any_thread(resume_);
  }
  // Called if the handler was destroyed uncalled. With a stop token and outside of the loop, the
  // loop itself is ending.
  void drop() noexcept {
    if (stop_.can_stop()) {
      if (EventLoop::current_or_null() != loop_) {
        return;
      }
      on_stop_.unlink();
    }
    thrown_ = stop_.stop_requested() ? nullptr : dropped_handler_error();
    go_on();
  }

  auto plain() -> typename Signature::Plain {
    if constexpr (kValues == 1) {
      return std::get<0>(std::move(*values_));
    } else if constexpr (kValues > 1) {
      return std::move(*values_);
    }
  }
  auto with_error() {
    if constexpr (kValues == 0) {
      return error_;
    } else if constexpr (kValues == 1) {
      return std::pair<Error, std::tuple_element_t<0, Values>>(error_,
                                                               std::get<0>(std::move(*values_)));
    } else {
      return std::tuple_cat(std::tuple<Error>(error_), std::move(*values_));
    }
  }

  StopToken stop_;
  Initiation initiation_;
  Arguments arguments_;
  EventLoop* loop_ = nullptr;
  [[no_unique_address]] Error error_{};
  std::optional<Values> values_;  // set once the operation has ended
  std::exception_ptr thrown_;     // what the await throws
  std::optional<CancelSignal> signal_;
  OnStop on_stop_{*this};
  ResumeOp resume_;
};

/// Stores the error in the variable of redirect_error(), and passes the values to `handler`.
template <class Handler>
struct RedirectedHandler {
  using allocator_type = typename Handler::allocator_type;
  using cancellation_slot_type = asio::cancellation_slot;
  [[nodiscard]] allocator_type get_allocator() const noexcept { return {}; }
  [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept {
    return handler.get_cancellation_slot();
  }
  template <class... Results>
  void operator()(const asio::error_code& failure, Results&&... results) noexcept {
    *error = failure;
    std::move(handler)(std::forward<Results>(results)...);
  }
  asio::error_code* error;
  Handler handler;
};

}  // namespace detail
}  // namespace tandem

/// \cond SPECIALIZATION_OF_ANOTHER_NAMESPACE
template <bool kThrows, class... Results>
class asio::async_result<tandem::UseTask<kThrows>, void(Results...)> {
 public:
  // Adapters of old Asio versions name this type, and call no function that returns it.
  using return_type = void;
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation initiation, tandem::UseTask<kThrows> token,
                       Arguments&&... arguments) {
    using Tuple = std::tuple<std::decay_t<Arguments>...>;
    using Signature = tandem::detail::AsioSignature<tandem::detail::HeldResult<Results>...>;
    return tandem::detail::AsioAwaiter<kThrows, Initiation, Tuple, Signature>(
        token.stop, std::move(initiation), Tuple(std::forward<Arguments>(arguments)...));
  }
};

// Asio's own specialization asks for a `return_type`, which does not exist, because the awaiter's
// type depends on the initiation.
template <bool kThrows, class... Results>
class asio::async_result<asio::redirect_error_t<tandem::UseTask<kThrows>>,
                         void(asio::error_code, Results...)> {
 public:
  template <class Initiation, class Token, class... Arguments>
  static auto initiate(Initiation initiation, Token&& token, Arguments&&... arguments) {
    return asio::async_initiate<tandem::UseTask<kThrows>, void(Results...)>(
        [error = &token.ec_, initiation = std::move(initiation)](auto handler,
                                                                 auto&&... all) mutable {
          std::move(initiation)(
              tandem::detail::RedirectedHandler<decltype(handler)>{error, std::move(handler)},
              std::forward<decltype(all)>(all)...);
        },
        token.token_, std::forward<Arguments>(arguments)...);
  }
};
/// \endcond
