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
// A value is moved or copied here, unless the signature says T&: then the await gives the reference
// to what the handler was called with, which lives until then.
// Adapters take the token as well: as_tuple(use_task), redirect_error(use_task, error), and
// bind_executor, bind_allocator and bind_cancellation_slot, whose slot then stands in for a stop
// token's.
// An operation that drops its handler uncalled (because what it ran on has gone) is an Error of the
// await; so is one whose initiation throws, with what it throws. (A handler that was copied is not
// missed.)
// Thread rule: the loop's thread. An Asio object on another io_context than loop.reactor() works
// without a stop token, which is not passed between threads.
// Cancel rule: a stop request goes through Asio's cancellation slot; the await ends when the
// operation has, with Stopped if that broke it off. A transfer that use_task_result(stop) waits for
// returns {operation_aborted, bytes moved} instead, so that nothing that was moved is forgotten.
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

/// The token; kThrows false: the error code is a part of what the await returns.
template <bool kThrows>
struct UseTask {
  StopToken stop = {};
  [[nodiscard]] constexpr UseTask operator()(StopToken token) const noexcept { return {token}; }
};
inline constexpr UseTask<true> use_task{};
inline constexpr UseTask<false> use_task_result{};

namespace detail {

/// A cancellation signal keeps the memory of its slot, so signals are kept for the next operation;
/// per thread.
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
/// How the await holds a result: a T& as it is, all else by value (a const T& may be a temporary).
template <class Result>
using HeldResult = std::conditional_t<std::is_lvalue_reference_v<Result> &&
                                          !std::is_const_v<std::remove_reference_t<Result>> &&
                                          !kIsAsioError<Result>,
                                      Result, std::decay_t<Result>>;

/// How an operation's signature says that it failed.
struct NoAsioError {};

/// The values of an operation, and what an await of it returns: nothing, the one, or all.
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

/// Whether a cancellation broke the operation off.
[[nodiscard]] inline bool is_aborted(const asio::error_code& error) noexcept {
  return error == asio::error::operation_aborted;
}
[[nodiscard]] bool is_aborted(const std::exception_ptr& error) noexcept;
/// The Error of an operation whose handler died uncalled.
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
  // Asio moves it about and calls it once. One that was copied does not miss its call.
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
  // The handler has died uncalled. With a stop token, elsewhere, it is the end of the loop itself.
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
  std::optional<Values> values_;  // there once the operation has ended
  std::exception_ptr thrown_;     // by a value that was moved here
  std::optional<CancelSignal> signal_;
  OnStop on_stop_{*this};
  ResumeOp resume_;
};

/// Puts the error where redirect_error() was told, and the rest into `handler`.
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
  // The adapters of old Asios name it, and call nothing that returns it.
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

// Asio's own asks for a `return_type`, which an awaiter that knows its initiation has not.
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
