// runtime/util/error.hpp — the one exception type that ends a program, with the exit code the
// user's scripts rely on.
// Text: "[where] what, value, limit; do this": one line, no newline. Programs print it as "error:
// <text>" on stderr.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace tandem {

/// Exit codes of every program (docs/design.md, "Errors").
enum class ExitCode : int {
  kDone = 0,
  kFailure = 1,     // anything that has no code of its own
  kUserInput = 2,   // flag, config, file, dataset or checkpoint is wrong
  kRefused = 3,     // does not fit; refused before anything was allocated
  kPeer = 4,        // a peer rank or a collective failed
  kBadState = 5,    // the run's state is bad (loss not finite for too long)
  kReportLost = 6,  // trained and saved; a report is lost: no reason to start over
};

/// The cause of an error, where it decides whether a supervisor may start over.
enum class ErrorCategory : unsigned char {
  kOther,
  kDevice,      // state on a device is lost for all that share it
  kCollective,  // the peers wait for something that does not come
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text, ErrorCategory category = ErrorCategory::kOther)
      : std::runtime_error(text), code_(code), category_(category) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  [[nodiscard]] ErrorCategory category() const noexcept { return category_; }
  /// False if no part of the program may be restarted after it; then it goes up to the root.
  [[nodiscard]] bool restartable() const noexcept {
    return category_ == ErrorCategory::kOther && code_ != ExitCode::kPeer;
  }

 private:
  ExitCode code_;
  ErrorCategory category_;
};

namespace detail {

/// The error whose text is "[where] ", then `what` with its arguments.
[[nodiscard]] Error formatted_error(ExitCode code, ErrorCategory category, std::string_view where,
                                    fmt::string_view what, fmt::format_args arguments);

}  // namespace detail

/// The user's input is wrong: `throw user_error("config", "unknown key \"{}\"; did you mean
/// \"{}\"?", key, nearest)`.
template <class... Args>
[[nodiscard]] Error user_error(std::string_view where, fmt::format_string<Args...> what,
                               Args&&... args) {
  return detail::formatted_error(ExitCode::kUserInput, ErrorCategory::kOther, where, what,
                                 fmt::make_format_args(args...));
}

/// Any other failure of the world around us (I/O, device, memory), with its exit code.
template <class... Args>
[[nodiscard]] Error failure(ExitCode code, std::string_view where, fmt::format_string<Args...> what,
                            Args&&... args) {
  return detail::formatted_error(code, ErrorCategory::kOther, where, what,
                                 fmt::make_format_args(args...));
}

/// A device failed; never restartable.
template <class... Args>
[[nodiscard]] Error device_error(std::string_view where, fmt::format_string<Args...> what,
                                 Args&&... args) {
  return detail::formatted_error(ExitCode::kFailure, ErrorCategory::kDevice, where, what,
                                 fmt::make_format_args(args...));
}

/// A collective or a peer failed; never restartable.
template <class... Args>
[[nodiscard]] Error collective_error(std::string_view where, fmt::format_string<Args...> what,
                                     Args&&... args) {
  return detail::formatted_error(ExitCode::kPeer, ErrorCategory::kCollective, where, what,
                                 fmt::make_format_args(args...));
}

}  // namespace tandem
