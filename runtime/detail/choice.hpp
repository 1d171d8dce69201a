// runtime/detail/choice.hpp — waits on several channels and receives from the first that has a
// value.
//
// A candidate waits in the list of its channel; the candidates of a choice are a group, so that the
// one that gets a value removes the others from their lists: at most one value is received.
// Thread rule: the loop's thread. Internal to Channel and select().
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/detail/wait_list.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/task.hpp"

namespace tandem::detail {

struct Candidate {
  Candidate() = default;
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;
  /// Takes a value if the channel has one now; returns false if it has none.
  virtual bool take() = 0;
  [[nodiscard]] virtual bool has_value() const noexcept = 0;
  /// Puts the value back at the front of its channel.
  virtual void give_back() = 0;
  /// True if the channel is closed: only the values that it holds still come.
  [[nodiscard]] virtual bool closed() const noexcept = 0;
  virtual WaitList& list() noexcept = 0;
  virtual ListedWaiter& waiter() noexcept = 0;

 protected:
  ~Candidate() = default;
};

/// Waits until a candidate has taken a value and returns its index; returns all.size() if all
/// channels are closed and empty. Throws DeadlineExceeded or Stopped. The candidates must have been
/// made with the same `stop`.
Task<std::size_t> choose(std::vector<Candidate*> all, TimePoint deadline, StopToken stop);

}  // namespace tandem::detail
