#include "runtime/with_deadline.hpp"

#include "runtime/detail/await_chain.hpp"
#include "runtime/detail/loop_registry.hpp"
#include "runtime/detail/root_task.hpp"
#include "runtime/report.hpp"

namespace tandem {

DeadlineExceeded::DeadlineExceeded(const char* request, const char* actor)
    : Error(ExitCode::kFailure,
            fmt::format("[actor] {} was not answered by {} in time", request, actor)) {}

namespace {

// Reports the awaits that keep the task; its tasks in turn may wait in scopes stopped with it.
void report_kept(const TaskPromiseBase& task, EventLoop& loop) {
  std::string text = fmt::format(
      "[deadline] a part of task \"{}\" was asked to stop at its deadline and still waits after "
      "{} s: {}; give that await the token of `co_await current_stop_token()`",
      task.task != nullptr ? task.task : "main",
      std::chrono::duration_cast<std::chrono::seconds>(detail::DeadlineTimer::kPatience).count(),
      describe_await_chain(task, loop.now()));
  for (const Scope* scope = loop.registry().first_scope; scope != nullptr;
       scope = scope->next_on_loop()) {
    for (const auto* at = scope->first_task(); scope->stop_requested() && at != nullptr;
         at = at->next_in_scope) {
      text += fmt::format("\n  also asked to stop: {}", describe_await_chain(*at, loop.now()));
    }
  }
  report(text);
}

}  // namespace

void detail::DeadlineTimer::be_due() noexcept {
  EventLoop& loop = scope.loop();
  if (asked) {
    report_kept(task, loop);
    return;
  }
  asked = true;
  late = !scope.stop_requested();  // otherwise something else has stopped it before
  scope.request_stop();
  start(loop, time_after(loop.now(), kPatience));
}

void detail::throw_late(const std::exception_ptr& failure) {
  if (failure != nullptr) {
    try {
      std::rethrow_exception(failure);
    } catch (const Stopped&) {
      // That was us.
    }
  }
  throw DeadlineExceeded(
      fmt::format("[deadline] a part of task \"{}\" did not end in time, and was stopped",
                  t_running.name != nullptr ? t_running.name : "main"));
}

}  // namespace tandem
