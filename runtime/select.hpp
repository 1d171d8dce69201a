// runtime/select.hpp — receives the next value from the first of several channels that has one.
//
// Exactly one value is taken, and the other channels keep theirs. If several have a value, the
// channel that is named first gives it. A channel that is closed and empty is passed over; the
// result is nullopt if all of them are. select() waits in the queue of each channel like any
// receiver; if one of the channels is closed meanwhile, it enters the queues anew, at their ends.
// Thread rule: the loop's thread; the channels outlive the wait.
// Cancel rule: a stop throws Stopped and a deadline DeadlineExceeded; a value that was handed over
// before a stop goes back into its channel, in front.
//
//   while (auto got = co_await select(stop, commands, lines)) {   // until both are closed
//     got->index is 0 or 1, and got->value a std::variant of that index (a T if all carry T)
//   }
//   co_await select(100ms, stop, commands, lines);   // throws DeadlineExceeded
//   co_await select(stop, std::vector<Channel<int>*>{&a, &b});
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/channel.hpp"
#include "runtime/first_of.hpp"

namespace tandem {

namespace detail {

template <class Value, std::size_t kIndex, class T>
First<Value> first_value(T& value) {
  if constexpr (std::is_same_v<Value, T>) {
    return {kIndex, std::move(value)};
  } else {
    return {kIndex, Value(std::in_place_index<kIndex>, std::move(value))};
  }
}

template <class Value, class... Ts>
Task<std::optional<First<Value>>> select_one(std::tuple<Channel<Ts>*...> channels,
                                             TimePoint deadline, StopToken stop) {
  using Each = std::tuple<typename Channel<Ts>::Candidate...>;
  Each each =
      std::apply([&](auto*... channel) { return Each(std::pair(channel, stop)...); }, channels);
  std::vector<Candidate*> all =
      std::apply([](auto&... one) { return std::vector<Candidate*>{&one...}; }, each);
  const std::size_t index = co_await choose(std::move(all), deadline, stop);
  std::optional<First<Value>> found;
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    ((index == kIndex
          ? void(found.emplace(first_value<Value, kIndex>(std::get<kIndex>(each).value())))
          : void()),
     ...);
  }(std::index_sequence_for<Ts...>());
  co_return found;
}

template <class T>
Task<std::optional<First<T>>> select_of_range(std::vector<Channel<T>*> channels, TimePoint deadline,
                                              StopToken stop) {
  std::deque<typename Channel<T>::Candidate> each;
  std::vector<Candidate*> all;
  for (Channel<T>* channel : channels) {
    all.push_back(&each.emplace_back(std::pair(channel, stop)));
  }
  const std::size_t index = co_await choose(std::move(all), deadline, stop);
  std::optional<First<T>> found;
  if (index < each.size()) {
    found.emplace(First<T>{index, std::move(each[index].value())});
  }
  co_return found;
}

}  // namespace detail

/// co_await returns First{index, value} of the channel that has a value first; nullopt if all are
/// closed and empty.
template <class... Ts>
  requires(sizeof...(Ts) > 0)
[[nodiscard]] auto select(TimePoint deadline, StopToken stop, Channel<Ts>&... channels) {
  return detail::select_one<typename detail::FirstValueOf<Ts...>::Type, Ts...>(
      std::tuple<Channel<Ts>*...>(&channels...), deadline, std::move(stop));
}
template <class Rep, class Period, class... Ts>
  requires(sizeof...(Ts) > 0)
[[nodiscard]] auto select(std::chrono::duration<Rep, Period> limit, StopToken stop,
                          Channel<Ts>&... channels) {
  return select(time_after(EventLoop::current().now(), saturated(limit)), std::move(stop),
                channels...);
}
template <class... Ts>
  requires(sizeof...(Ts) > 0)
[[nodiscard]] auto select(StopToken stop, Channel<Ts>&... channels) {
  return select(TimePoint::max(), std::move(stop), channels...);
}
template <class... Ts>
  requires(sizeof...(Ts) > 0)
[[nodiscard]] auto select(Channel<Ts>&... channels) {
  return select(StopToken(), channels...);
}

/// Selects from any number of channels that carry the same type.
template <class T>
[[nodiscard]] auto select(TimePoint deadline, StopToken stop, std::vector<Channel<T>*> channels) {
  return detail::select_of_range<T>(std::move(channels), deadline, std::move(stop));
}
template <class Rep, class Period, class T>
[[nodiscard]] auto select(std::chrono::duration<Rep, Period> limit, StopToken stop,
                          std::vector<Channel<T>*> channels) {
  return select(time_after(EventLoop::current().now(), saturated(limit)), std::move(stop),
                std::move(channels));
}
template <class T>
[[nodiscard]] auto select(StopToken stop, std::vector<Channel<T>*> channels) {
  return select(TimePoint::max(), std::move(stop), std::move(channels));
}

}  // namespace tandem
