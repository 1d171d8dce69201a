// trainer/run_checkpoints.hpp — a trainer's checkpoints: when one is saved, what a run is
// resumed from, and which signals and times end it.
//
//   --save_every N    a checkpoint every N steps and at the end, --keep K of them
//   --resume DIR|auto a checkpoint, or the newest whole one of a run
//   --stop_after T    saves and ends
//   SIGINT, SIGTERM, SIGHUP, SIGXCPU
//                     answered at once by a line of rank 0; the step is finished, then saved where
//                     checkpoints are asked for; one that comes a second later or more ends the
//                     process at once. Before the first step there is nothing to save: a line, and
//                     the process ends. A SIGHUP that nohup ignores stays ignored; SIGXCPU, a
//                     batch system's warning, is a SIGTERM that is sent once
//   SIGUSR1           saves and goes on
//
// All ranks decide the same: what a signal or the time asks of one of them reaches all with the
// step's exchange. A save that fails is a warning on stderr; training goes on, and the run's exit
// code says at the end that one was lost. A run whose state is bad (the engine's error
// of exit code 5: too many steps in a row were skipped) saves its last good weights before it ends.
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

/// The folder that --resume names: of one checkpoint, or of several, on whichever host. Empty:
/// there is none to be resumed, by --resume auto or without --resume. Throws user_error. A
/// collective.
std::string resume_folder(const RunFlags& flags, Communicator& ranks);

/// Whether it is a checkpoint of DeepSpeed or torch, for all ranks. Throws user_error where it is
/// one on some hosts only. A collective.
bool is_foreign_everywhere(const std::string& folder, Communicator& ranks);

/// Before the config is made: where --resume goes on with another number of ranks and the user did
/// not say --gradient_accumulation_steps, it becomes what keeps the step's micro-batches. A
/// collective.
void keep_global_batch(RunFlags& flags, Communicator& ranks);

/// The state from which a run goes on.
struct ResumedRun {
  std::vector<std::string> lines;  // to print
  std::string client_state = "{}";
};
/// Loads what --resume names, and cuts the metrics of the output folder behind it. A collective.
ResumedRun resume_run(const RunFlags& flags, Engine& engine, Communicator& ranks);

/// From now on a signal that ends the process says so in a line; until RunCheckpoints takes them.
void end_on_signals();

class RunCheckpoints {
 public:
  /// `files` lie beside the tensors (CheckpointArgs::files), and what `client_state` gives at each
  /// save. Takes the signals from now on, and holds the room while nothing is being saved.
  RunCheckpoints(const RunFlags& flags, Engine& engine, MetricsWriter& metrics, RunRoom& room,
                 std::vector<std::pair<std::string, std::string>> files = {},
                 std::function<std::string()> client_state = {});

  /// The engine's next step; nullopt at the data's end, and where the run's state is bad.
  std::optional<StepResult> train_step();
  /// Whether the run goes on after the step; begins a save where one is due.
  bool after(const StepResult& result);
  /// The last checkpoint, where there are any, and a line that says how to go on.
  void finish();
  /// Saves the trained model by `save`. Where no step changed a weight an older one in `folder`
  /// stays. An error waits for exit_code(), so that the run's reports are still written. On all
  /// ranks.
  void save_model(const std::string& folder, const std::function<void()>& save);
  /// How the run ended. Throws the error of a bad state (5: all steps skipped, too), else of
  /// save_model(); 1 where the last checkpoint was lost; 128 + the signal that ended the run; 6
  /// where an earlier checkpoint or a report was lost; 0.
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
