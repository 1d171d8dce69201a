// runtime/awake_time.hpp — how long one who looks every so often was not awake in between: its
// process was stopped, or its host slept. A deadline that counts only time in which the waiter was
// awake is put off by that.
//
// Pure arithmetic, of one thread.
#pragma once

#include "runtime/clock.hpp"

namespace tandem {

class AwakeTime {
 public:
  /// `every`: how often look() is called while the process runs.
  AwakeTime(Duration every, TimePoint now) noexcept : every_(every), looked_(now) {}

  /// The part of the time since the last look that does not count; 0 while it goes on. A look that
  /// is late because the machine is busy counts in full up to kLate times the interval.
  [[nodiscard]] Duration look(TimePoint now) noexcept {
    const Duration since = now - looked_;
    looked_ = now;
    return since > kLate * every_ ? since - every_ : Duration::zero();
  }

 private:
  static constexpr int kLate = 3;
  Duration every_;
  TimePoint looked_;
};

}  // namespace tandem
