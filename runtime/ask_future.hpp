// runtime/ask_future.hpp — asks an actor from a thread without a loop: the answer arrives in a
// std::future.
//
// It is a separate header, because most files do not need <future>.
// Thread rule: any thread, while the actor's loop lives; the loop has to run for the answer to
// come.
// Cancel rule: an ask with a limit ends by then; an ask whose future was destroyed is answered all
// the same.
//
//   int sum = ask_future(meter.address(), Sum{}, 100ms).get();   // throws what the handler threw
#pragma once

#include <chrono>
#include <future>
#include <utility>

#include "runtime/address.hpp"

namespace tandem {

namespace detail {

template <Request R>
RootTask answer_future(Address<R> to, R request, Duration limit,
                       std::promise<typename R::Reply> answer) {
  try {
    if constexpr (std::is_void_v<typename R::Reply>) {
      co_await to.ask(std::move(request), limit);
      answer.set_value();
    } else {
      answer.set_value(co_await to.ask(std::move(request), limit));
    }
  } catch (...) {
    answer.set_exception(std::current_exception());
  }
}

}  // namespace detail

/// The future throws what co_await ask() throws. It throws ActorClosed if the actor was not started
/// or takes no messages any more.
template <Request R, class... Messages, class Rep = Duration::rep, class Period = Duration::period>
  requires detail::OneOf<R, Messages...>
[[nodiscard]] std::future<typename R::Reply> ask_future(
    const Address<Messages...>& to, R request,
    std::chrono::duration<Rep, Period> limit = Duration::max()) {
  std::promise<typename R::Reply> answer;
  std::future<typename R::Reply> future = answer.get_future();
  // A closed actor may have outlived its loop.
  EventLoop* home = to.closed() ? nullptr : to.mailbox()->loop();
  if (home == nullptr) {
    answer.set_exception(std::make_exception_ptr(ActorClosed(to.name())));
    return future;
  }
  const detail::RootTask task = detail::answer_future<R>(Address<R>(to), std::move(request),
                                                         saturated(limit), std::move(answer));
  task.set_name("ask_future");
  home->post_from_any_thread(task.start());
  return future;
}

}  // namespace tandem
