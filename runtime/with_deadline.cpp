#include "runtime/with_deadline.hpp"

#include "runtime/detail/root_task.hpp"

namespace tandem {

DeadlineExceeded::DeadlineExceeded(const char* request, const char* actor)
    : Error(ExitCode::kFailure,
            fmt::format("[actor] {} was not answered by {} in time", request, actor)) {}

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
