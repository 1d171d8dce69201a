// trainer/metrics/console.hpp — the console output of a run: one plain line per step on stdout, cut
// to the terminal's columns, and on a terminal a progress bar with the remaining time on stderr;
// without a bar the lines show the remaining time.
// Invariant: without a terminal no carriage return or escape is ever written, so logs stay plain
// lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "engine/metrics/step_metrics.hpp"

namespace tandem {

enum class ProgressMode : std::uint8_t {
  kAuto,   // lines, and the bar when stderr is a terminal
  kBar,    // as kAuto: a bar needs a terminal
  kLines,  // lines only
  kOff,    // neither; notes only
};

/// "auto", "bar", "lines" or "off"; anything else is a user_error.
[[nodiscard]] ProgressMode progress_mode_of(std::string_view text);

/// The progress of a run.
struct RunProgress {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;  // 0: unknown, the bar then only counts
  std::int64_t steps_here = 0;   // of them in this run; a resumed run has done fewer than `step`
  double elapsed_s = 0;
};

/// Returns the remaining time at the pace so far; NaN before the first step.
[[nodiscard]] double remaining_s(const RunProgress& state);

/// `[####......]  12/30  40%  elapsed 0:12  left 0:18`, at most `width` characters, without
/// position control.
[[nodiscard]] std::string progress_bar(const RunProgress& state, int width);

/// "0:07", "12:34", "1:02:03"
[[nodiscard]] std::string duration_text(double seconds);

/// The columns of the terminal on which lines of this output appear: its own, or that of the
/// launcher which relays them (TANDEM_COLUMNS); nullopt: there is none.
[[nodiscard]] std::optional<std::size_t> shown_columns(std::FILE* file);

class Console {
 public:
  /// `log_interval` 0: no step lines.
  Console(ProgressMode mode, std::int64_t total_steps, std::int64_t log_interval,
          std::FILE* lines = stdout, std::FILE* bar = stderr);
  ~Console();  // ends the bar
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints the step's line when it is due, and redraws the bar.
  void step(const StepMetrics& metrics);
  void note(std::string_view line);
  [[nodiscard]] RunProgress progress() const;
  /// Removes the bar.
  void finish();

 private:
  [[nodiscard]] std::string step_line(const StepMetrics& metrics) const;
  void erase_bar();
  void draw_bar(std::int64_t step);
  void print_line(std::string_view line);

  std::FILE* lines_;
  std::FILE* bar_;
  std::int64_t total_steps_;
  std::int64_t log_interval_;
  bool show_lines_;
  bool show_bar_;
  bool bar_drawn_ = false;
  std::int64_t last_step_ = 0;
  // the step before the first one seen: a resumed run's ETA counts its own steps
  std::int64_t first_step_ = -1;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_drawn_;
};

}  // namespace tandem
