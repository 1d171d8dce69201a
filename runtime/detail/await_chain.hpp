// runtime/detail/await_chain.hpp — describes in one line what a suspended task waits for, from its
// root down to the leaf.
//
//   reader (runtime/actor.hpp:128, 3.002 s) <- parse (app/reader.cpp:40, 2.100 s) <- [completion]
// Each entry has the line of its last co_await and the time since then, by the loop's clock; a task
// that has not run yet is marked so.
// Thread rule: the loop's thread.
#pragma once

#include <string>
#include <string_view>

#include "runtime/clock.hpp"
#include "runtime/task.hpp"

namespace tandem {

[[nodiscard]] std::string describe_await_chain(const TaskPromiseBase& root, TimePoint now);
/// Returns the task at the chain's end, which awaits something that is no task.
[[nodiscard]] const TaskPromiseBase& await_leaf(const TaskPromiseBase& root) noexcept;

namespace detail {
/// Returns a function's short name: "parse" for "Task<> app::(anonymous namespace)::parse(Reader *,
/// int)", and "lambda" for a lambda.
[[nodiscard]] std::string short_function_name(std::string_view function);
}  // namespace detail

}  // namespace tandem
