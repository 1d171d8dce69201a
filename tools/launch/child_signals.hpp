// tools/launch/child_signals.hpp — a launcher's signals through a descriptor, in the order of its
// loop's other events, and the processes that it is the reaper of. Thread rule: the main thread.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

/// In the environment of every process that a launcher starts, and of their children's: which
/// launchers they belong to.
inline constexpr const char* kLaunchMark = "TANDEM_LAUNCH_MARK";

/// Whether a launch takes this signal and hands it to its ranks.
[[nodiscard]] bool is_passed_on(int signal);

class ChildSignals {
 public:
  /// SIGCHLD, SIGUSR1 and those that ask a program to end; they stay blocked afterwards. This
  /// process becomes the reaper of whatever its children leave. Children that it has already, as
  /// a program that a shell became may have, are left alone.
  ChildSignals();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// The next one that came; nothing: none is left. SIGXCPU, a batch system's warning, is a
  /// SIGTERM.
  [[nodiscard]] std::optional<int> next() const;
  /// Whether one that asks for the end waits to be taken.
  [[nodiscard]] static std::optional<int> end_pending();

  /// The value that start_child() is to set as kLaunchMark.
  [[nodiscard]] const std::string& mark() const noexcept { return mark_; }
  /// Kills and reaps every child that was started since, and what becomes one when its parent
  /// dies, until there is none.
  void end_children() const;

 private:
  [[nodiscard]] std::vector<pid_t> own_children() const;

  OwnedDescriptor descriptor_;
  std::string mark_;
  std::set<pid_t> strangers_;
};

/// Signals that ask for the end: one asks, a further one demands it. Two within kApart are one, as
/// `timeout` and some terminals send two.
class EndRequests {
 public:
  static constexpr std::chrono::seconds kApart{1};
  enum class Means : unsigned char { kNothing, kEnd, kEndAtOnce };
  [[nodiscard]] Means note(int signal, std::chrono::steady_clock::time_point now);
  /// The first one; 0: none came.
  [[nodiscard]] int first() const noexcept { return first_; }

 private:
  int first_ = 0;
  std::chrono::steady_clock::time_point since_;
};

/// Waits for one of these descriptors, until then at most; max(): for ever.
void poll_until(std::vector<pollfd>& looked_at, std::chrono::steady_clock::time_point until);

}  // namespace tandem
