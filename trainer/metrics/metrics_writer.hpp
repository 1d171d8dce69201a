// trainer/metrics/metrics_writer.hpp — a run's metrics on disk and on the terminal: metrics.jsonl,
// summary.json, resolved_config.json, TensorBoard events, the config's monitors, console lines,
// progress bar. One rank writes (the others are silent); one thread at a time.
//
// A report never ends training: after the first step, a file that cannot be written is tried again
// at the next step. A line on stderr reports the first such file; artefacts_line() names all of
// them. Before the first step it is an error.
// Invariant: every file has only whole lines or records, however the run ends; summary.json and
// resolved_config.json appear complete or not at all. Files of an earlier run in the folder stay
// until the first step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/metrics/event_writer.hpp"
#include "engine/metrics/line_file.hpp"
#include "engine/metrics/monitors.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/metrics/summary.hpp"
#include "engine/metrics/wandb_feed.hpp"
#include "engine/types/evaluation.hpp"
#include "trainer/metrics/console.hpp"

namespace tandem {

struct MetricsOptions {
  std::string output_dir;         // made when it is not there
  std::int64_t total_steps = 0;   // for the bar and its ETA; 0: unknown
  std::int64_t log_interval = 1;  // 0: no lines of our own, the trainer writes its own by note()
  std::int64_t warmup_steps = 0;  // left out of the summary's figures
  bool tensorboard = true;
  MonitorConfig monitors = {};  // the config's blocks, over samples
  std::int64_t samples_per_step = 1;
  bool scales_loss = false;           // fp16: its scale is a monitored figure
  bool wall_clock_breakdown = false;  // the config's: its timers are monitored, too
  bool wandb_over_steps = false;      // not over samples
  std::string wandb_name = {};        // of the run
  std::vector<std::string> wandb_tags = {};
  std::string config_json = {};  // for wandb
  bool append = false;           // resume: go on in the metrics.jsonl that is there
  ProgressMode progress = ProgressMode::kAuto;
  // for a rank that is not the first: takes the figures, but writes and prints nothing
  bool silent = false;
  bool has_disk =
      true;  // the first of the ranks that share the folder: it moves an earlier run's files
  bool quiet = false;  // warnings and errors alone on the console
};

class MetricsWriter {
 public:
  /// Opens the files. Throws user_error when the directory cannot be made or written.
  explicit MetricsWriter(MetricsOptions options);

  /// Writes one step everywhere. With the first one, unless `append`, the metrics, summary and
  /// events, checkpoints and models of an earlier run move to earlier-N/.
  void write(const StepMetrics& metrics);

  /// Writes the losses of an evaluation behind that step to metrics.jsonl and the events.
  void write_evaluation(std::int64_t step, const EvalSums& sums);

  /// Prints a line among the console lines (above the bar, if there is one).
  void note(std::string_view line);
  /// The same, but notes.txt does not get the line.
  void say(std::string_view line);
  /// Prints the line on stderr as a warning, also if the console is quiet.
  void warn(std::string_view line);

  /// Writes resolved_config.json, and config_keys.txt, which says whether each key is applied.
  void write_config(std::string_view json, const std::vector<std::string>& key_lines) const;

  /// Writes one of the run's reports with `write`, which may be a collective. If that throws, the
  /// report called `what` is lost; a warning reports the first loss. A failed peer is not caught.
  void report(const std::string& what, const std::function<void()>& write);
  /// Whether any report was lost.
  [[nodiscard]] bool lost() const noexcept { return !lost_.empty(); }
  /// "artefacts in runs/x", and which of them were lost.
  [[nodiscard]] std::string artefacts_line() const;

  /// The figures measured so far, for the caller to complete and hand to finish().
  [[nodiscard]] RunSummary summary() const { return builder_.summary(); }

  /// Returns the last step's figures; step 0 before the first step.
  [[nodiscard]] const StepMetrics& last() const noexcept { return last_; }
  [[nodiscard]] RunProgress progress() const { return console_.progress(); }

  /// Writes report.html from the other files. Call it after finish().
  void write_page();

  /// Ends the bar, writes summary.json and closes the other files. No write() after it.
  void finish(const RunSummary& summary);

  [[nodiscard]] const std::string& output_dir() const noexcept { return options_.output_dir; }

 private:
  void open_wandb();
  /// Writes one step's figures to the events and the monitors.
  void write_scalars(const StepMetrics& metrics);
  /// Says once that micro-batches have no label.
  void warn_of_unlabelled(const StepMetrics& metrics);
  /// Moves the files of another run into a folder of its own. An error ends the run, which would
  /// otherwise replace and remove saved files.
  void set_aside();

  MetricsOptions options_;
  SummaryBuilder builder_;
  Console console_;
  std::optional<LineFile> jsonl_;
  std::unique_ptr<EventWriter> events_;
  std::vector<std::unique_ptr<ScalarMonitor>> monitors_;
  std::unique_ptr<WandbFeed> wandb_;
  StepMetrics last_;
  bool begun_ = false;
  bool warned_of_unlabelled_ = false;
  std::string notes_;  // notes.txt, before the first step
  std::set<std::string> lost_;
};

}  // namespace tandem
