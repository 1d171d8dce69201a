// runtime/interop/execution.hpp — tasks and loops for programs that compose senders (P2300), by
// NVIDIA's stdexec, whose headers the program brings.
//
//   LoopScheduler(loop)                     a scheduler; its work runs on the loop's thread
//   as_sender(scope, factory, args...)      a task of `scope` as a sender
//   co_await await_sender(sender, stop)     any sender in a task: its value, or its error thrown
//
// Stops pass both ways: a stop of the receiver's token stops the task that a sender started, and a
// stop of `stop` is seen by the awaited sender.
// Thread rule: senders are connected and started on any thread; await_sender() belongs to a loop's.
// Cancel rule: an await ends when its sender has completed, with Stopped if that was set_stopped.
// The loop and the scope outlive what was started: join the scope.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stdexec/execution.hpp>

#include "runtime/event_loop.hpp"
#include "runtime/exit_reason.hpp"
#include "runtime/scope.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

/// Schedules work on the loop's thread, from any thread.
class LoopScheduler {
 public:
  explicit LoopScheduler(EventLoop& loop) noexcept : loop_(&loop) {}
  bool operator==(const LoopScheduler&) const noexcept = default;

  struct Environment {
    EventLoop* loop;
    [[nodiscard]] LoopScheduler query(
        stdexec::get_completion_scheduler_t<stdexec::set_value_t> /*key*/) const noexcept {
      return LoopScheduler(*loop);
    }
  };

  template <class Receiver>
  struct Operation : private Op {
    Operation(EventLoop& loop_in, Receiver receiver_in)
        : Op(&Operation::arrive), loop(loop_in), receiver(std::move(receiver_in)) {}
    Operation(Operation&&) = delete;
    void start() noexcept { loop.post_from_any_thread(*this); }

   private:
    static void arrive(Op& op) noexcept {
      auto& self = static_cast<Operation&>(op);
      if (stdexec::get_stop_token(stdexec::get_env(self.receiver)).stop_requested()) {
        stdexec::set_stopped(std::move(self.receiver));
      } else {
        stdexec::set_value(std::move(self.receiver));
      }
    }
    EventLoop& loop;
    Receiver receiver;
  };

  struct Sender {
    using sender_concept = stdexec::sender_t;
    using completion_signatures =
        stdexec::completion_signatures<stdexec::set_value_t(), stdexec::set_stopped_t()>;

    EventLoop* loop;
    [[nodiscard]] Environment get_env() const noexcept { return {loop}; }
    template <stdexec::receiver Receiver>
    [[nodiscard]] Operation<Receiver> connect(Receiver receiver) const {
      return Operation<Receiver>(*loop, std::move(receiver));
    }
  };
  [[nodiscard]] Sender schedule() const noexcept { return {loop_}; }

 private:
  EventLoop* loop_;
};

namespace detail {

template <class T>
struct ValueSignature {
  using Type = stdexec::set_value_t(T);
};
template <>
struct ValueSignature<void> {
  using Type = stdexec::set_value_t();
};

/// A task that has been made a sender: what it needs to begin, and the receiver it completes.
template <class Receiver, class Factory, class... Args>
class TaskOperation : private Op {
  using Value = TaskResult<Factory, Args...>;

 public:
  TaskOperation(Scope& scope, Factory factory, std::tuple<Args...> args, Receiver receiver)
      : Op(&TaskOperation::arrive),
        scope_(scope),
        factory_(std::move(factory)),
        args_(std::move(args)),
        receiver_(std::move(receiver)) {}
  TaskOperation(TaskOperation&&) = delete;

  /// Any thread.
  void start() noexcept { scope_.loop().post_from_any_thread(*this); }

 private:
  struct Request {
    StopHandle to;
    void operator()() const noexcept { to.request_stop(); }
  };
  using Token = stdexec::stop_token_of_t<stdexec::env_of_t<Receiver>>;
  using OnStop = stdexec::stop_callback_for_t<Token, Request>;

  static void arrive(Op& op) noexcept {
    auto& self = static_cast<TaskOperation&>(op);
    self.scope_.spawn("sender", &TaskOperation::run, &self);
  }

  // Completes as its last act, since the receiver may destroy this object.
  static Task<> run(TaskOperation* self) {
    std::optional<OnStop> on_stop;
    Outcome<Value> outcome;
    try {
      auto body = with_scope(&TaskOperation::body, self, &on_stop);
      if constexpr (std::is_void_v<Value>) {
        co_await std::move(body);
        outcome.set_value();
      } else {
        outcome.set_value(co_await std::move(body));
      }
    } catch (...) {
      outcome.set_error(std::current_exception());
    }
    on_stop.reset();
    self->complete(outcome);
  }
  static Task<Value> body(Scope& inner, TaskOperation* self, std::optional<OnStop>* on_stop) {
    on_stop->emplace(stdexec::get_stop_token(stdexec::get_env(self->receiver_)),
                     Request{inner.stop_handle()});
    co_return co_await std::apply(
        [self](Args&... args) { return std::invoke(self->factory_, std::move(args)...); },
        self->args_);
  }
  void complete(Outcome<Value>& outcome) noexcept {
    if (outcome.failed() && is_stopped(outcome.error())) {
      stdexec::set_stopped(std::move(receiver_));
    } else if (outcome.failed()) {
      stdexec::set_error(std::move(receiver_), std::exception_ptr(outcome.error()));
    } else if constexpr (std::is_void_v<Value>) {
      stdexec::set_value(std::move(receiver_));
    } else {
      stdexec::set_value(std::move(receiver_), outcome.take());
    }
  }

  Scope& scope_;
  Factory factory_;
  std::tuple<Args...> args_;
  Receiver receiver_;
};

template <class Factory, class... Args>
struct TaskSender {
  using sender_concept = stdexec::sender_t;
  using completion_signatures =
      stdexec::completion_signatures<typename ValueSignature<TaskResult<Factory, Args...>>::Type,
                                     stdexec::set_error_t(std::exception_ptr),
                                     stdexec::set_stopped_t()>;

  Scope* scope;
  Factory factory;
  std::tuple<Args...> args;

  [[nodiscard]] LoopScheduler::Environment get_env() const noexcept { return {&scope->loop()}; }
  template <stdexec::receiver Receiver>
  [[nodiscard]] TaskOperation<Receiver, Factory, Args...> connect(Receiver receiver) && {
    return {*scope, std::move(factory), std::move(args), std::move(receiver)};
  }
  template <stdexec::receiver Receiver>
  [[nodiscard]] TaskOperation<Receiver, Factory, Args...> connect(Receiver receiver) const& {
    return {*scope, factory, args, std::move(receiver)};
  }
};

/// The value of an awaited sender: void, the one value, or a tuple.
template <class... Values>
struct SenderValues {
  using Type = std::tuple<Values...>;
};
template <class Value>
struct SenderValues<Value> {
  using Type = Value;
};
template <>
struct SenderValues<> {
  using Type = void;
};
template <class... Values>
using SenderValuesOf = typename SenderValues<std::decay_t<Values>...>::Type;
/// ... of a sender with one set of values, or with none.
template <class... Values>
struct OneSet {
  static_assert(sizeof...(Values) == 0, "a sender with several sets of values cannot be awaited");
  using Type = void;
};
template <class Value>
struct OneSet<Value> {
  using Type = Value;
};
template <class... Values>
using OneSetOf = typename OneSet<Values...>::Type;

/// Awaits one sender. Its receiver may be completed on any thread.
template <class Sender>
class SenderAwaiter : private Op, private StopCallback {
  struct Environment {
    stdexec::inplace_stop_token token;
    [[nodiscard]] stdexec::inplace_stop_token query(
        stdexec::get_stop_token_t /*key*/) const noexcept {
      return token;
    }
  };
  struct Receiver {
    using receiver_concept = stdexec::receiver_t;
    SenderAwaiter* awaiter;

    [[nodiscard]] Environment get_env() const noexcept { return {awaiter->stopping_.get_token()}; }
    template <class... Values>
    void set_value(Values&&... values) noexcept {
      try {
        if constexpr (sizeof...(Values) > 1) {
          awaiter->outcome_.set_value(Value(std::forward<Values>(values)...));
        } else {
          awaiter->outcome_.set_value(std::forward<Values>(values)...);
        }
      } catch (...) {
        awaiter->outcome_.set_error(std::current_exception());
      }
      awaiter->complete();
    }
    template <class Error>
    void set_error(Error&& error) noexcept {
      if constexpr (std::is_same_v<std::decay_t<Error>, std::exception_ptr>) {
        awaiter->outcome_.set_error(std::forward<Error>(error));
      } else if constexpr (std::is_same_v<std::decay_t<Error>, std::error_code>) {
        awaiter->outcome_.set_error(std::make_exception_ptr(std::system_error(error)));
      } else {
        awaiter->outcome_.set_error(std::make_exception_ptr(std::forward<Error>(error)));
      }
      awaiter->complete();
    }
    void set_stopped() noexcept {
      awaiter->outcome_.set_error(std::make_exception_ptr(Stopped()));
      awaiter->complete();
    }
  };

 public:
  using Value = stdexec::value_types_of_t<Sender, Environment, SenderValuesOf, OneSetOf>;
  static constexpr const char* kAwaitName = "sender";

  SenderAwaiter(Sender sender, StopToken stop)
      : Op(&SenderAwaiter::arrive),
        StopCallback([](StopCallback& self) noexcept {
          static_cast<SenderAwaiter&>(self).stopping_.request_stop();
        }),
        stop_(std::move(stop)),
        operation_(stdexec::connect(std::move(sender), Receiver{this})) {}
  SenderAwaiter(SenderAwaiter&&) = delete;

  bool await_ready() const noexcept { return stop_.stop_requested(); }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    loop_ = &EventLoop::current();
    resume_.set(coroutine);
    if (stop_.can_stop()) {
      stop_.link(*this);
    }
    stdexec::start(operation_);
  }
  Value await_resume() {
    if (outcome_.empty()) {
      throw Stopped();  // before it began
    }
    return outcome_.take();
  }

 private:
  using Operation = stdexec::connect_result_t<Sender, Receiver>;

  void complete() noexcept { loop_->post_from_any_thread(*this); }
  static void arrive(Op& op) noexcept {
    auto& self = static_cast<SenderAwaiter&>(op);
    self.unlink();
    ResumeOp::resume(self.resume_);
  }

  StopToken stop_;
  stdexec::inplace_stop_source stopping_;
  Outcome<Value> outcome_;
  EventLoop* loop_ = nullptr;
  ResumeOp resume_;
  Operation operation_;
};

}  // namespace detail

/// Returns a sender that runs factory(args...), a Task, in `scope` and completes on its loop's
/// thread: with the task's value, its exception, or, where it ended by Stopped, as stopped. A
/// sender that is an lvalue can be connected again if factory and arguments can be copied.
template <class Factory, class... Args>
  requires TaskFactory<Factory, Args...>
[[nodiscard]] auto as_sender(Scope& scope, Factory factory, Args... args) {
  return detail::TaskSender<Factory, Args...>{&scope, factory, {std::move(args)...}};
}

/// co_await returns the sender's value (a tuple of several), throws its error (an error_code as
/// std::system_error), or Stopped. A sender with several sets of values is no such sender:
/// stdexec::into_variant makes it one.
template <class Sender>
  requires stdexec::sender<std::remove_cvref_t<Sender>>
[[nodiscard]] auto await_sender(Sender&& sender, StopToken stop = {}) {
  return detail::SenderAwaiter<std::remove_cvref_t<Sender>>(std::forward<Sender>(sender),
                                                            std::move(stop));
}

}  // namespace tandem
