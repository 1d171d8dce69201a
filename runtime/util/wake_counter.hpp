// runtime/util/wake_counter.hpp — one thread sleeps until others have called wake() once more; no
// wake is lost, whatever the order. Explored by tests/model/.
// Thread rule: wait(), wait_until() by one thread, wake() by any.
#pragma once

#include "runtime/util/atomics.hpp"

namespace tandem {

template <class Atomics>
class BasicWakeCounter {
 public:
  /// Returns once for each wake().
  void wait() noexcept {
    // acquire: what was done before the wake is seen.
    while (count_.load(std::memory_order_acquire) == seen_) {
      Atomics::wait(count_, seen_);
    }
    ++seen_;
  }
  /// Does what wait() does; but if `until` comes first, it takes no wake and returns false.
  template <class Time>
  [[nodiscard]] bool wait_until(Time until) noexcept {
    while (count_.load(std::memory_order_acquire) == seen_) {
      if (!Atomics::wait_until(count_, seen_, until)) {
        return false;
      }
    }
    ++seen_;
    return true;
  }
  void wake() noexcept {
    count_.fetch_add(1, std::memory_order_release);
    Atomics::wake_one(count_);
  }

 private:
  typename Atomics::template Atomic<int> count_{0};
  int seen_ = 0;
};

using WakeCounter = BasicWakeCounter<StdAtomics>;

}  // namespace tandem
