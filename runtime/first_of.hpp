// runtime/first_of.hpp — several tasks at once, and the value of the first that succeeds.
//
// The first task that returns is the winner, even while others have failed. The rest are stopped
// (their stop token is what current_stop_token() finds there) and awaited before this returns; what
// they return or throw after that is dropped. If none succeeds, the first failure is rethrown when
// all have ended; Stopped, if the caller's scope was stopped.
// Tasks are awaited in the expression that makes them.
// Thread rule: the loop's thread.
// Cancel rule: as its tasks; none of them runs on when the await has ended, which therefore lasts
// until the slowest loser has stopped.
//
//   auto first = co_await first_of(ask_mirror(a), ask_mirror(b));
//   first.index is 0 or 1, and first.value the winner's. Values of several types come as a
//   std::variant whose index is the winner's; void as std::monostate.
//   auto line = co_await first_of(mirrors, &ask_mirror);   // one task for each of a range
#pragma once

#include <concepts>
#include <cstddef>
#include <deque>
#include <exception>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "runtime/util/error.hpp"
#include "runtime/when_all.hpp"

namespace tandem {

/// The winner's index among the tasks, and its value.
template <class Value>
struct First {
  std::size_t index;
  Value value;
};

namespace detail {

template <class... Ts>
struct FirstValueOf {
  using Type = std::variant<ValueOrUnit<Ts>...>;
};
template <class T, std::same_as<T>... Ts>
struct FirstValueOf<T, Ts...> {
  using Type = ValueOrUnit<T>;
};

template <class Value>
struct Race {
  Scope* scope;
  std::optional<First<Value>> winner;
  std::exception_ptr failure;  // the first

  // A task that was stopped, because another has won or because the caller was stopped, has not
  // failed.
  void note_failure() noexcept {
    if (failure == nullptr && !scope->stop_requested()) {
      failure = std::current_exception();
    }
  }
  First<Value> result() {
    if (!winner.has_value()) {
      if (failure != nullptr && !scope->stop_requested()) {
        std::rethrow_exception(failure);
      }
      throw Stopped();
    }
    return std::move(*winner);
  }
};

template <std::size_t kIndex, class T, class Value>
void win(Race<Value>* race, ValueOrUnit<T> value) {
  if (race->winner.has_value()) {
    return;
  }
  if constexpr (std::is_same_v<Value, ValueOrUnit<T>>) {
    race->winner.emplace(First<Value>{kIndex, std::move(value)});
  } else {
    race->winner.emplace(
        First<Value>{kIndex, Value(std::in_place_index<kIndex>, std::move(value))});
  }
  race->scope->request_stop();
}

template <std::size_t kIndex, class T, class Value>
Task<> run_race(Race<Value>* race, Task<T>* task) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(*task);
      win<kIndex, T>(race, {});
    } else {
      win<kIndex, T>(race, co_await std::move(*task));
    }
  } catch (...) {
    race->note_failure();
  }
}

template <class T, class Factory, class Item>
Task<> race_item(Race<ValueOrUnit<T>>* race, std::size_t index, Held<Factory> factory, Item* item) {
  std::optional<ValueOrUnit<T>> value;
  try {
    co_await make_into<T, Factory, Item>(&value, factory, item);
  } catch (...) {
    race->note_failure();
    co_return;
  }
  if (!race->winner.has_value()) {
    race->winner.emplace(First<ValueOrUnit<T>>{index, std::move(*value)});
    race->scope->request_stop();
  }
}

template <class Value, class... Ts>
Task<First<Value>> first_of_all(std::tuple<Task<Ts>*...> tasks) {
  Scope scope(EventLoop::current(), "first_of", token_of(co_await FindScope{}));
  Race<Value> race{.scope = &scope, .winner = {}, .failure = {}};
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (scope.spawn("first_of", &run_race<kIndex, Ts, Value>, &race, std::get<kIndex>(tasks)), ...);
  }(std::index_sequence_for<Ts...>());
  co_await scope.join();
  co_return race.result();
}

template <class T, class Item, class Factory>
Task<First<ValueOrUnit<T>>> first_of_range(std::deque<Item> items, Held<Factory> factory) {
  if (items.empty()) {
    throw user_error("first_of", "a race of no tasks has no winner; give it one at least");
  }
  Scope scope(EventLoop::current(), "first_of", token_of(co_await FindScope{}));
  Race<ValueOrUnit<T>> race{.scope = &scope, .winner = {}, .failure = {}};
  for (std::size_t i = 0; i < items.size(); ++i) {
    scope.spawn("first_of", &race_item<T, Factory, Item>, &race, i, factory, &items[i]);
  }
  co_await scope.join();
  co_return race.result();
}

}  // namespace detail

/// co_await returns First{index, value} of the first task that succeeds. It is to be awaited at
/// once, because it refers to the tasks.
template <class... Ts>
  requires(sizeof...(Ts) > 0 && !(std::is_reference_v<Ts> || ...))
[[nodiscard]] auto first_of(Task<Ts>&&... tasks) {
  using Value = typename detail::FirstValueOf<Ts...>::Type;
  return detail::TaskGroup<First<Value>>(
      [&] { return detail::first_of_all<Value, Ts...>(std::tuple<Task<Ts>*...>(&tasks...)); });
}

/// co_await returns First{index, value} of the first item whose task factory(item) succeeds. Throws
/// Error if there is no item.
template <std::ranges::input_range Items, class Factory>
  requires TaskFactory<Factory, std::ranges::range_value_t<Items>>
[[nodiscard]] auto first_of(Items&& items, Factory factory) {
  using Item = std::ranges::range_value_t<Items>;
  return detail::first_of_range<TaskResult<Factory, Item>, Item, Factory>(
      detail::items_of(std::forward<Items>(items)), factory);
}

}  // namespace tandem
