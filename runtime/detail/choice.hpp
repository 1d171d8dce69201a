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
  /// Takes a value that is there now; false: there is none.
  virtual bool take() = 0;
  [[nodiscard]] virtual bool has_value() const noexcept = 0;
  /// The value goes back to the front of its channel.
  virtual void give_back() = 0;
  /// No value comes any more, but for those that are there.
  [[nodiscard]] virtual bool closed() const noexcept = 0;
  virtual WaitList& list() noexcept = 0;
  virtual ListedWaiter& waiter() noexcept = 0;

 protected:
  ~Candidate() = default;
};

/// The number of the candidate that has a value then; all.size(): all are closed and empty. Throws
/// DeadlineExceeded, or Stopped; the candidates were made with `stop`.
Task<std::size_t> choose(std::vector<Candidate*> all, TimePoint deadline, StopToken stop);

}  // namespace tandem::detail
