// trainer/program/start_clock.hpp — divides the time from a command to its first step into parts.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

/// The clock begins with the process. It counts the process's own start, too (loading libraries,
/// twice if the process starts itself again), which the system gives in hundredths of a second.
class StartClock {
 public:
  /// Counts the time since the last mark as `part`.
  void mark(std::string_view part);
  /// "start    1.92 s: program 0.31, model 0.27".
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::pair<std::string, double>> parts_;  // seconds
  double marked_s_ = 0;                                // of the process
};

}  // namespace tandem
