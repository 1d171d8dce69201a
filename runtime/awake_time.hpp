// runtime/awake_time.hpp — measures time in which this process was stopped or its host slept, from
// the gaps between regular ticks. A deadline that counts only time awake is extended by it.
//
// Thread rule: one thread. It only computes, and reads no clock.
#pragma once

#include "runtime/clock.hpp"

namespace tandem {

class AwakeTime {
 public:
  /// `every`: how often slept_since() is called while the process runs.
  AwakeTime(Duration every, TimePoint now) noexcept : every_(every), asked_(now) {}

  /// Returns the part of the time since the last call in which the process was not awake; 0
  /// normally. A call that is late because the machine is busy counts in full up to kLate times the
  /// interval.
  [[nodiscard]] Duration slept_since(TimePoint now) noexcept {
    const Duration since = now - asked_;
    asked_ = now;
    return since > kLate * every_ ? since - every_ : Duration::zero();
  }

 private:
  static constexpr int kLate = 3;
  Duration every_;
  TimePoint asked_;
};

}  // namespace tandem
