#include "runtime/await_chain.hpp"

#include <string_view>

#include <fmt/format.h>

namespace tandem {

std::string describe_await_chain(const TaskPromiseBase& root) {
  std::string text;
  for (const TaskPromiseBase* task = &root; task != nullptr; task = task->child) {
    if (!text.empty()) {
      text += " <- ";
    }
    text +=
        fmt::format("{} ({}:{})", task->name != nullptr ? task->name : task->made.function_name(),
                    task->where.file_name(), task->where.line());
    if (task->child == nullptr && task->waiting_for != nullptr) {
      text += fmt::format(" <- [{}]", task->waiting_for);
    }
  }
  return text;
}

}  // namespace tandem
