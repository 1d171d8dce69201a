// tools/launch/child_signals.hpp — a launcher's signals through a descriptor, in the order of its
// loop's other events, and the processes that it is the reaper of. Of the main thread; threads are
// made while an instance lives, so that they take no signal.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

class ChildSignals {
 public:
  /// SIGCHLD, SIGUSR1 and those that ask a program to end; they stay blocked afterwards. This
  /// process becomes the reaper of whatever its children leave.
  ChildSignals();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// The next one that came; nothing: none is left.
  [[nodiscard]] std::optional<int> next() const;
  /// Whether one that asks for the end waits to be taken.
  [[nodiscard]] static std::optional<int> end_pending();

 private:
  OwnedDescriptor descriptor_;
};

/// Waits for one of these descriptors, until then at most; max(): for ever.
void poll_until(std::vector<pollfd>& looked_at, std::chrono::steady_clock::time_point until);

/// Kills and reaps every child, and what becomes one when its parent dies, until there is none.
void end_children();

}  // namespace tandem
