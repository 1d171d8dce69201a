// runtime/exit_reason.hpp — why an actor ended, as its parent and its watchers are told.
//
// A plain value; the names live for ever, so it may outlive the actor and travel to other threads.
#pragma once

#include <exception>
#include <string>

namespace tandem {

struct ExitReason {
  enum class Kind : unsigned char {
    kNormal,   // closed, and everything accepted was handled
    kStopped,  // its scope was asked to stop
    kFailed,
  };

  Kind kind = Kind::kNormal;
  const char* actor = "no actor";
  // failed: where the failure began: the actor, a task in its scope, or one of its descendants
  const char* origin = nullptr;
  const char* message = nullptr;  // failed: what `origin` was handling; null: no message
  std::exception_ptr error;       // failed

  [[nodiscard]] bool failed() const noexcept { return kind == Kind::kFailed; }
  /// False for errors of devices and collectives: their state is shared, and no new actor repairs
  /// it (Error::restartable).
  [[nodiscard]] bool restartable() const noexcept;
  /// "parser failed in worker at Line: bad digit", "parser ended", "parser was stopped".
  [[nodiscard]] std::string text() const;
};

/// The text of any exception, in one line.
[[nodiscard]] std::string describe_error(const std::exception_ptr& error);

namespace detail {
/// True if it is the Stopped of stop_token.hpp.
[[nodiscard]] bool is_stopped(const std::exception_ptr& error) noexcept;
/// True if it is ActorClosed.
[[nodiscard]] bool is_closing(const std::exception_ptr& error) noexcept;
}  // namespace detail

}  // namespace tandem
