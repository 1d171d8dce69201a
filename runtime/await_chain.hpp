// runtime/await_chain.hpp — what a suspended task is waiting for, from its root down to the leaf, in one line.
//
//   worker (pump at file.cpp:12) <- read_all (file.cpp:40) <- [event]
// Thread rule: of the loop's thread.
#pragma once

#include <string>

#include "runtime/task.hpp"

namespace tandem {

[[nodiscard]] std::string describe_await_chain(const TaskPromiseBase& root);

}  // namespace tandem
