// runtime/detail/timer_heap.hpp — the timers of one loop: a binary heap of intrusive nodes, any of
// which can be removed.
//
// Equal deadlines fire in the order in which they were armed.
// Thread rule: the loop's thread. Memory grows to the most timers ever armed at once, and is
// kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/detail/op.hpp"

namespace tandem {

/// Its run() is called on the loop once the deadline has passed. It may be destroyed once it has
/// run, or once the loop has disarmed it before it was due, or has taken it back.
struct TimerOp : Op {
  static constexpr std::size_t kNotArmed = std::numeric_limits<std::size_t>::max();
  explicit TimerOp(Run run_function) noexcept : Op(run_function) {}
  [[nodiscard]] bool armed() const noexcept { return position != kNotArmed; }

  std::size_t position = kNotArmed;  // in the heap
};

class TimerHeap {
 public:
  [[nodiscard]] bool empty() const noexcept { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return heap_.size(); }
  [[nodiscard]] TimePoint next_deadline() const noexcept { return heap_.front().deadline; }

  void arm(TimerOp& timer, TimePoint deadline);
  /// Does nothing if it is not armed (any more).
  void disarm(TimerOp& timer) noexcept;
  /// Moves every timer that is due at `now` to `queue`, earliest first.
  void take_due(TimePoint now, OpQueue<Op>& queue) noexcept;

 private:
  struct Entry {
    TimePoint deadline;
    std::uint64_t sequence;
    TimerOp* timer;
    bool operator<(const Entry& other) const noexcept {
      return deadline != other.deadline ? deadline < other.deadline : sequence < other.sequence;
    }
  };

  void place(std::size_t position, const Entry& entry) noexcept;
  void sift_up(std::size_t position, const Entry& entry) noexcept;
  void sift_down(std::size_t position, const Entry& entry) noexcept;

  std::vector<Entry> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace tandem
