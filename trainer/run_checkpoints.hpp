// trainer/run_checkpoints.hpp — saves a trainer's checkpoints, resumes runs, and handles the
// signals and times that end them.
//
//   --save_every N    a checkpoint every N steps and at the end, --keep K of them
//   --resume DIR|auto a checkpoint, or the newest whole one of a run
//   --stop_after T    saves and ends
//   SIGINT, SIGTERM, SIGHUP, SIGXCPU
//                     rank 0 prints a line at once; the step is finished, and then saved if the
//                     run saves checkpoints. A second signal, a second later or more, ends the
//                     process at once. Before the first step there is nothing to save: a line is
//                     printed, and the process ends. A SIGHUP that nohup ignores stays ignored;
//                     SIGXCPU, a batch system's warning, is a SIGTERM that is sent once
//   SIGUSR1           saves and goes on
//
// All ranks decide the same: a request by a signal or a time limit on one of them reaches all with
// the step's exchange. A failed save is a warning on stderr; training goes on, and the run's exit
// code reports it at the end. A run in a bad state (the engine's error with exit code 5: too many
// skipped steps in a row) saves its last good weights before it ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "runtime/util/error.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/folder/run_room.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {

/// Returns the folder that --resume names: of one checkpoint or of several, on any host. Empty:
/// there is nothing to resume, with --resume auto or without --resume. Throws user_error.
/// Collective.
std::string resume_folder(const RunFlags& flags, Communicator& ranks);

/// Whether it is a checkpoint of DeepSpeed or torch. Throws user_error if it is one on some hosts
/// only. Collective.
bool is_foreign_everywhere(const std::string& folder, Communicator& ranks);

/// If --resume continues with another number of ranks and --gradient_accumulation_steps is not
/// given, sets it so that a step has the same micro-batches. Call it before the config is made.
/// Collective.
void keep_global_batch(RunFlags& flags, Communicator& ranks);

/// The state from which a run goes on.
struct ResumedRun {
  std::vector<std::string> lines;  // to print
  std::string client_state = "{}";
};
/// Loads the checkpoint of --resume, and removes later metrics from the output folder. Collective.
ResumedRun resume_run(const RunFlags& flags, Engine& engine, Communicator& ranks);

/// Makes signals that end the process print a line, until RunCheckpoints handles them.
void end_on_signals();

class RunCheckpoints {
 public:
  /// `files` are saved beside the tensors (CheckpointArgs::files), and so is the text that
  /// `client_state` returns at each save. Handles the signals from now on, and reserves the disk
  /// space while no save is under way.
  RunCheckpoints(const RunFlags& flags, Engine& engine, MetricsWriter& metrics, RunRoom& room,
                 std::vector<std::pair<std::string, std::string>> files = {},
                 std::function<std::string()> client_state = {});

  /// Runs the engine's next step; returns nullopt at the data's end, or if the run is in a bad
  /// state.
  std::optional<StepResult> train_step();
  /// Begins a save if one is due; returns whether the run goes on after the step.
  bool after(const StepResult& result);
  /// Saves the last checkpoint, if checkpoints are on, and prints a line that says how to resume.
  void finish();
  /// Saves the trained model with `save`. If no step changed a weight, an older model in `folder`
  /// stays. An error is kept for exit_code(), so that the run's reports are still written.
  /// Collective.
  void save_model(const std::string& folder, const std::function<void()>& save);
  /// Returns the run's exit code. Throws the error of a bad state (5, also if all steps were
  /// skipped), else that of save_model(). Returns 1 if the last checkpoint was lost; 128 + the
  /// signal that ended the run; 6 if an earlier checkpoint or a report was lost; else 0.
  [[nodiscard]] int exit_code() const;
  /// "done", "interrupted at 65 of 900" by a signal or --stop_after, or "failed at 65 of 900".
  [[nodiscard]] std::string ended(std::int64_t of_steps) const;

 private:
  void save();
  void report(const CheckpointOutcome& outcome);

  const RunFlags& flags_;
  Engine& engine_;
  MetricsWriter& metrics_;
  RunRoom& room_;
  std::vector<std::pair<std::string, std::string>> files_;
  std::function<std::string()> client_state_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double stop_after_s_ = 0;  // 0: never
  bool stopped_ = false;
  std::int64_t begun_step_ = -1;  // of the last save
  std::string last_failure_;      // empty: the last checkpoint is saved
  bool any_failed_ = false;
  std::int64_t steps_ = 0;  // of this process
  std::int64_t applied_ = 0;
  std::optional<Error> bad_state_;
  std::exception_ptr not_saved_;
};

}  // namespace tandem
