#include "runtime/exit_reason.hpp"

#include <cstring>

#include <fmt/format.h>

#include "runtime/mailbox_options.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

std::string describe_error(const std::exception_ptr& error) {
  if (error == nullptr) {
    return "no error";
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

namespace {

template <class E>
bool holds(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const E&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

bool detail::is_stopped(const std::exception_ptr& error) noexcept { return holds<Stopped>(error); }
bool detail::is_closing(const std::exception_ptr& error) noexcept {
  return holds<ActorClosed>(error);
}

bool ExitReason::restartable() const noexcept {
  if (error == nullptr) {
    return true;
  }
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.restartable();
  } catch (...) {
    return true;
  }
}

std::string ExitReason::text() const {
  switch (kind) {
    case Kind::kNormal:
      return fmt::format("{} ended", actor);
    case Kind::kStopped:
      return fmt::format("{} was stopped", actor);
    case Kind::kFailed:
      break;
  }
  std::string where;
  if (origin != nullptr && std::strcmp(origin, actor) != 0) {
    where += fmt::format(" in {}", origin);
  }
  if (message != nullptr) {
    where += fmt::format(" at {}", message);
  }
  return fmt::format("{} failed{}: {}", actor, where, describe_error(error));
}

}  // namespace tandem
