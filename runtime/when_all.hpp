// runtime/when_all.hpp — several tasks at once, and all of their values.
//
// They run as tasks of a new scope, whose stop token current_stop_token() returns in them. The
// first failure stops the others, and is rethrown when all have ended. A stop of the caller's scope
// stops all of them; then the await throws Stopped. Tasks are awaited in the expression that makes
// them; a range of arguments makes one task each, in its order.
// Thread rule: the loop's thread.
// Cancel rule: as its tasks; nothing runs on when the await has ended.
//
//   auto [text, size] = co_await when_all(read(path), measure(path));
//       a std::tuple; a void becomes std::monostate
//   std::vector<int> lines = co_await when_all(paths, &count_lines);
//       one task per path
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/scope.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// The type that stands for a void value among others.
template <class T>
using ValueOrUnit = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

namespace detail {

/// Several tasks, which are awaited in the full expression that made them, so that they outlive the
/// wait. It is awaited only as an rvalue.
template <class Result>
class [[nodiscard("it runs only when it is awaited")]] TaskGroup {
 public:
  template <class Start>
  explicit TaskGroup(Start start) : whole_(start()) {}
  TaskGroup(TaskGroup&&) = delete;
  TaskGroup& operator=(TaskGroup&&) = delete;
  auto operator co_await() && noexcept { return std::move(whole_).operator co_await(); }

 private:
  Task<Result> whole_;
};

template <class T>
Task<> run_into(std::optional<ValueOrUnit<T>>* value, Task<T>* task) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(*task);
    value->emplace();
  } else {
    value->emplace(co_await std::move(*task));
  }
}

// `item` belongs to the coroutine that waits for this one. (If it were passed on by value, clang 19
// would lay it out below its alignment.)
template <class T, class Factory, class Item>
Task<> make_into(std::optional<ValueOrUnit<T>>* value, Held<Factory> factory, Item* item) {
  if constexpr (std::is_void_v<T>) {
    co_await std::invoke(factory, std::move(*item));
    value->emplace();
  } else {
    value->emplace(co_await std::invoke(factory, std::move(*item)));
  }
}

/// Returns the items of a range, copied from an lvalue or moved from an rvalue.
template <std::ranges::input_range Items>
std::deque<std::ranges::range_value_t<Items>> items_of(Items&& items) {
  std::deque<std::ranges::range_value_t<Items>> all;
  for (auto&& item : items) {
    if constexpr (std::is_lvalue_reference_v<Items>) {
      all.push_back(item);
    } else {
      all.push_back(std::move(item));
    }
  }
  return all;
}

/// Returns the token of `scope` (null: one that never stops), to make a scope below it.
inline StopToken token_of(Scope* scope) noexcept {
  return scope != nullptr ? scope->stop_token() : StopToken();
}

template <class... Ts>
Task<std::tuple<ValueOrUnit<Ts>...>> all_of(std::tuple<Task<Ts>*...> tasks) {
  Scope scope(EventLoop::current(), "when_all", token_of(co_await FindScope{}));
  std::tuple<std::optional<ValueOrUnit<Ts>>...> values;
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (scope.spawn("when_all", &run_into<Ts>, &std::get<kIndex>(values), std::get<kIndex>(tasks)),
     ...);
  }(std::index_sequence_for<Ts...>());
  co_await scope.join();
  if (!std::apply([](const auto&... value) { return (value.has_value() && ...); }, values)) {
    throw Stopped();  // the caller's scope asked for it: no failure
  }
  co_return std::apply(
      [](auto&... value) { return std::tuple<ValueOrUnit<Ts>...>(std::move(*value)...); }, values);
}

template <class T, class Item, class Factory>
Task<std::vector<ValueOrUnit<T>>> all_of_range(std::deque<Item> items, Held<Factory> factory) {
  Scope scope(EventLoop::current(), "when_all", token_of(co_await FindScope{}));
  std::vector<std::optional<ValueOrUnit<T>>> found(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    scope.spawn("when_all", &make_into<T, Factory, Item>, &found[i], factory, &items[i]);
  }
  co_await scope.join();
  std::vector<ValueOrUnit<T>> values;
  values.reserve(found.size());
  for (auto& value : found) {
    if (!value.has_value()) {
      throw Stopped();
    }
    values.push_back(std::move(*value));
  }
  co_return values;
}

}  // namespace detail

/// co_await returns the values of all tasks, in a tuple. It is to be awaited at once, because it
/// refers to the tasks.
template <class... Ts>
  requires(sizeof...(Ts) > 0 && !(std::is_reference_v<Ts> || ...))
[[nodiscard]] auto when_all(Task<Ts>&&... tasks) {
  return detail::TaskGroup<std::tuple<ValueOrUnit<Ts>...>>(
      [&] { return detail::all_of<Ts...>(std::tuple<Task<Ts>*...>(&tasks...)); });
}

/// co_await returns the values of factory(item) for each item, in the order of `items`.
template <std::ranges::input_range Items, class Factory>
  requires TaskFactory<Factory, std::ranges::range_value_t<Items>>
[[nodiscard]] auto when_all(Items&& items, Factory factory) {
  using Item = std::ranges::range_value_t<Items>;
  return detail::all_of_range<TaskResult<Factory, Item>, Item, Factory>(
      detail::items_of(std::forward<Items>(items)), factory);
}

}  // namespace tandem
