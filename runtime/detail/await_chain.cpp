#include "runtime/detail/await_chain.hpp"

#include <fmt/format.h>

namespace tandem {
namespace {

// The folder and the file.
std::string_view short_path(std::string_view path) {
  const std::size_t last = path.rfind('/');
  if (last == std::string_view::npos || last == 0) {
    return path;
  }
  const std::size_t before = path.rfind('/', last - 1);
  return before == std::string_view::npos ? path : path.substr(before + 1);
}

}  // namespace

std::string detail::short_function_name(std::string_view function) {
  // Without what follows the parameters: " const", " [with T = int]".
  const std::size_t end = function.rfind(')', function.find(" ["));
  if (end == std::string_view::npos) {
    return std::string(function);
  }
  std::size_t begin = end;  // of the parameters
  for (int depth = 0;; --begin) {
    depth += function[begin] == ')' ? 1 : function[begin] == '(' ? -1 : 0;
    if (depth == 0 || begin == 0) {
      break;
    }
  }
  std::string_view name = function.substr(0, begin);
  if (name.ends_with("operator()") || name.ends_with('>') || name.empty()) {
    if (name.find("lambda") != std::string_view::npos || name.ends_with("operator()")) {
      return "lambda";
    }
    int depth = 0;
    std::size_t cut = name.size();
    do {  // template arguments
      --cut;
      depth += name[cut] == '>' ? 1 : name[cut] == '<' ? -1 : 0;
    } while (depth > 0 && cut > 0);
    name = name.substr(0, cut);
  }
  const std::size_t start = name.find_last_of(" :*&");
  return std::string(start == std::string_view::npos ? name : name.substr(start + 1));
}

const TaskPromiseBase& await_leaf(const TaskPromiseBase& root) noexcept {
  const TaskPromiseBase* task = &root;
  while (task->child != nullptr) {
    task = task->child;
  }
  return *task;
}

std::string describe_await_chain(const TaskPromiseBase& root, TimePoint now) {
  std::string text;
  for (const TaskPromiseBase* task = &root; task != nullptr; task = task->child) {
    if (!text.empty()) {
      text += " <- ";
    }
    text += task->name != nullptr ? task->name
                                  : detail::short_function_name(task->made.function_name());
    text += fmt::format(" ({}:{}", short_path(task->where.file_name()), task->where.line());
    if (task->since_ns == TaskPromiseBase::kNeverAwaited) {
      text += task == &root ? ", not started)" : ")";
    } else {
      const auto waited =
          static_cast<double>(now.time_since_epoch().count() - task->since_ns) * 1e-9;
      text += fmt::format(", {:.3f} s)", waited > 0 ? waited : 0.0);
    }
    if (task->child == nullptr && task->waiting_for != nullptr) {
      text += fmt::format(" <- [{}]", task->waiting_for);
    }
  }
  return text;
}

}  // namespace tandem
