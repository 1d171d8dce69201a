#include "runtime/detail/root_task.hpp"

#include <fmt/format.h>

#include "runtime/exit_reason.hpp"
#include "runtime/report.hpp"

namespace tandem::detail {
namespace {

// Awaits are drawn under the task that they belong to. Only what was spawned in a scope has no
// parent and a scope.
std::uint64_t trace_id_of(const TaskPromiseBase& promise) noexcept {
  const TaskPromiseBase* root = &promise;
  while (root->parent != nullptr) {
    root = root->parent;
  }
  const std::uint64_t id =
      root->scope != nullptr ? static_cast<const RootTask::promise_type*>(root)->trace_id : 0;
  return id != 0 ? id : trace::detail::next_id();
}

}  // namespace

void ResumeOp::resume_traced(ResumeOp& self) noexcept {
  const TaskPromiseBase& promise = *self.promise;
  const char* name = promise.task != nullptr ? promise.task : promise.made.function_name();
  const std::int64_t start_ns = trace::detail::now_ns();
  if (self.waiting_since_ns != 0) {
    trace::detail::record({.kind = trace::detail::Kind::kAsync,
                           .name = promise.waiting_for != nullptr ? promise.waiting_for : "await",
                           .start_ns = self.waiting_since_ns,
                           .duration_ns = start_ns - self.waiting_since_ns,
                           .id = trace_id_of(promise)});
  }
  trace::detail::push_range(name);
  self.handle.resume();  // the op, and the coroutine, may be gone afterwards
  trace::detail::record(
      {.name = name, .start_ns = start_ns, .duration_ns = trace::detail::now_ns() - start_ns});
  trace::detail::pop_range();
}

void report_unseen(const char* what, const char* name, const std::exception_ptr& error) noexcept {
  if (error == nullptr || is_stopped(error)) {
    return;
  }
  report(fmt::format("[runtime] {} \"{}\" failed, and nothing took the error: {}", what, name,
                     describe_error(error)));
}

}  // namespace tandem::detail
