// engine/types/stopwatch.hpp — wall time since construction, in seconds.
#pragma once

#include <chrono>

namespace tandem {

class Stopwatch {
 public:
  Stopwatch() noexcept : start_s_(now_s()) {}
  [[nodiscard]] double elapsed_s() const noexcept { return now_s() - start_s_; }
  /// Seconds on the monotonic clock that every measurement of a run shares.
  [[nodiscard]] static double now_s() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  double start_s_;
};

}  // namespace tandem
