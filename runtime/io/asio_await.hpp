// runtime/io/asio_await.hpp — Asio's operations as awaitables of ours: the completion token
// use_task.
//
// The operation starts when it is awaited; its handler comes back through the loop's queue. Handler
// memory is the loop's recycled memory: nothing is allocated per operation after the first ones.
// What the operation uses (socket, buffer) lives until the await returns.
//   co_await socket.async_read_some(buffer, use_task)
//       the value; an error is thrown as asio::system_error
//   co_await socket.async_read_some(buffer, use_task_result)
//       {error_code, value}, or the error_code alone
//   ...(buffer, use_task(stop)), ...(buffer, use_task_result(stop))
//       can be stopped
// Thread rule: of the loop's thread, with Asio objects on loop.reactor().
// Cancel rule: a stop request goes through Asio's cancellation slot; the await ends when the
// operation has, with Stopped if that broke it off.
//
//   asio::ip::tcp::socket socket(loop.reactor());
//   std::size_t n =
//       co_await socket.async_read_some(asio::buffer(bytes), use_task(scope.stop_token()));
#pragma once

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <asio/async_result.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/error.hpp>
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

template <bool kThrows, class Initiation, class Arguments, class... Values>
class AsioAwaiter {
  static_assert(sizeof...(Values) <= 1,
                "use_task takes operations with an error code and at most one value");

 public:
  static constexpr const char* kAwaitName = "asio";
  using Value = std::tuple_element_t<0, std::tuple<Values..., std::monostate>>;

  AsioAwaiter(StopToken stop, Initiation initiation, Arguments arguments)
      : stop_(stop), initiation_(std::move(initiation)), arguments_(std::move(arguments)) {}
  AsioAwaiter(const AsioAwaiter&) = delete;
  AsioAwaiter& operator=(const AsioAwaiter&) = delete;

  bool await_ready() noexcept {
    error_ = asio::error::operation_aborted;
    return stop_.stop_requested();
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    loop_ = &EventLoop::current();
    resume_.set(coroutine);
    if (stop_.can_stop()) {
      signal_.emplace();
      stop_.link(on_stop_);
    }
    std::apply(
        [this](auto&&... arguments) {
          std::move(initiation_)(Handler(*this), std::move(arguments)...);
        },
        std::move(arguments_));
  }
  auto await_resume() {
    if (error_ == asio::error::operation_aborted && stop_.stop_requested()) {
      throw Stopped();
    }
    if constexpr (kThrows) {
      if (error_) {
        throw asio::system_error(error_);
      }
      if constexpr (sizeof...(Values) == 1) {
        return std::move(*value_);
      }
    } else if constexpr (sizeof...(Values) == 1) {
      return std::pair<asio::error_code, Value>(error_,
                                                value_ ? std::move(*value_) : std::move(Value{}));
    } else {
      return error_;
    }
  }

 private:
  // Asio moves it about and calls it once.
  struct Handler {
    using allocator_type = RecyclingAllocator<void>;
    using cancellation_slot_type = asio::cancellation_slot;
    explicit Handler(AsioAwaiter& owner) noexcept : awaiter(&owner) {}
    [[nodiscard]] allocator_type get_allocator() const noexcept { return {}; }
    [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept {
      return awaiter->signal_ ? awaiter->signal_->slot() : asio::cancellation_slot();
    }
    template <class... Results>
    void operator()(const asio::error_code& error, Results&&... results) noexcept {
      awaiter->finish(error, std::forward<Results>(results)...);
    }
    AsioAwaiter* awaiter;
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
  void finish(const asio::error_code& error, Results&&... results) noexcept {
    TANDEM_DCHECK(loop_->on_loop_thread(), "an Asio object belongs to its loop's reactor");
    on_stop_.unlink();
    error_ = error;
    if constexpr (sizeof...(Results) == 1) {
      value_.emplace(std::forward<Results>(results)...);
    }
    loop_->post(resume_);
  }

  StopToken stop_;
  Initiation initiation_;
  Arguments arguments_;
  EventLoop* loop_ = nullptr;
  asio::error_code error_;
  std::optional<Value> value_;
  std::optional<CancelSignal> signal_;
  OnStop on_stop_{*this};
  ResumeOp resume_;
};

}  // namespace detail
}  // namespace tandem

/// \cond SPECIALIZATION_OF_ANOTHER_NAMESPACE
template <bool kThrows, class... Values>
class asio::async_result<tandem::UseTask<kThrows>, void(asio::error_code, Values...)> {
 public:
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation initiation, tandem::UseTask<kThrows> token,
                       Arguments&&... arguments) {
    using Tuple = std::tuple<std::decay_t<Arguments>...>;
    return tandem::detail::AsioAwaiter<kThrows, Initiation, Tuple, std::decay_t<Values>...>(
        token.stop, std::move(initiation), Tuple(std::forward<Arguments>(arguments)...));
  }
};
/// \endcond
