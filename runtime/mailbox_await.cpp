#include "runtime/mailbox_await.hpp"

namespace tandem {

DeadlineExceeded::DeadlineExceeded(const char* request, const char* actor)
    : Error(ExitCode::kFailure,
            fmt::format("[actor] {} was not answered by {} in time", request, actor)) {}

}  // namespace tandem
