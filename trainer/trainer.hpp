// trainer/trainer.hpp — a training run as one object: memory plan, output folder, engine, resume,
// reports, evaluations and checkpoints, as the flags and the config ask for them.
//
//   StartedRun started = start_run(flags);
//   const Config config = run_config(flags, started.ranks->world_size(), kConfig);
//   const RunLength length = run_length(config, data->size(), flags.steps, 3);
//   Trainer trainer(flags, std::move(started), {.model = model, .config = config, .dataset = data,
//                                               .length = length});
//   trainer.evaluate_on({.dataset = held_out, .every = length.per_epoch});
//   trainer.train();
//   trainer.save_model([&] { save_weights(trainer.engine(), trainer.model_folder(), type); });
//   return trainer.finish();
//
// Every call is a collective, made in this order on the thread that called start_run(). Nothing is
// written before the plan fits. Errors are Errors with the exit code of the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/disks.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/plan/run_plan.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/status_server.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/folder/output_folder.hpp"
#include "trainer/folder/run_room.hpp"
#include "trainer/metrics/metrics_writer.hpp"
#include "trainer/program/start_clock.hpp"
#include "trainer/run_checkpoints.hpp"
#include "trainer/run_evaluation.hpp"
#include "trainer/run_length.hpp"

namespace tandem {

/// The ranks of a run, and its output folder as far as it exists.
struct StartedRun {
  std::shared_ptr<Communicator> ranks;
  std::vector<OwnFolder> own;
};

/// Begins a run, before its config is made: the trace where the flags ask for one, signals that end
/// the process with a line, the ranks of the environment, and the flags that a restart or --resume
/// decides.
[[nodiscard]] StartedRun start_run(RunFlags& flags);

/// The folders that a run replaces with its trained weights, and what they take on the disk.
struct SavedModels {
  std::vector<std::string> folders = {"model"};  // the first one is model_folder()
  std::size_t weight_bytes = sizeof(float);      // of one weight in one folder
  std::int64_t beside_bytes = 0;                 // of the other files of one folder
};

/// The lines and figures that a run reports beside its metrics. The functions may be empty.
struct RunReports {
  std::string name;                // of the run, in its trace
  bool has_own_lines = false;      // no line per step: the program prints its own by note()
  bool every_step = false;         // a line per step, whatever --log_interval is
  bool quiet = false;              // warnings and errors alone
  bool prints_summary = true;      // at the end
  std::string rate_of;             // "images": the last line begins with their rate
  std::vector<std::string> lines;  // before the first step
  std::function<std::vector<std::string>(const Engine&)> describe;  // the same, before `lines`
  std::function<double(const StepResult&, const Engine&)> tflops;   // of a step
  std::function<double(const RunSummary&)> model_tflops;  // of the run; empty: as measured
};

struct TrainerArgs {
  Model model;
  Config config;
  std::shared_ptr<const Dataset> dataset;
  LargestBatch largest = {};  // records 0: the dataset's
  RunLength length;
  PrefetchOptions prefetch = {};
  std::function<double(std::int64_t)> learning_rate = {};  // as in InitializeArgs, as are the next
  std::vector<std::pair<std::string, std::string>> settings = {};
  std::vector<ParameterGroup> parameter_groups = {};
  std::vector<std::pair<std::string, std::string>> checkpoint_files = {};  // CheckpointArgs::files
  std::vector<std::filesystem::path> weight_files = {};  // must have the same bytes on all hosts
  SavedModels saved = {};
  RunReports reports = {};
  std::optional<StartClock> start = {};  // absent: the run does not print how long its start took
};

class Trainer {
 public:
  /// Plans the run, takes its folder, makes the engine and loads the checkpoint of --resume.
  /// `flags` outlives it; shares of the run in them become steps.
  Trainer(RunFlags& flags, StartedRun started, TrainerArgs args);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] MetricsWriter& metrics() noexcept { return *metrics_; }
  [[nodiscard]] const Config& config() const noexcept { return args_.config; }
  [[nodiscard]] const RunLength& length() const noexcept { return args_.length; }
  /// OUTPUT_DIR/model.
  [[nodiscard]] std::string model_folder() const;

  /// Evaluates during training. Call it before train(); without it nothing is evaluated.
  void evaluate_on(EvaluationOptions options);
  /// Trains until the run's last step, a signal, --stop_after or an evaluation ends it, and saves
  /// the last checkpoint. `after_step` is called behind each step's line.
  void train(const std::function<void(const StepResult&)>& after_step = {});
  /// Saves the trained model with `save`, which writes model_folder(). An error is kept for
  /// finish(), so that the run's reports are still written.
  void save_model(const std::function<void()>& save);
  /// Saves other weights with `save` during the run, in the disk space that is reserved for them.
  void save_beside(const std::function<void()>& save);
  /// Writes the summary, the trace and the report, and returns the exit code of the program. Throws
  /// the error with which the run ended.
  [[nodiscard]] int finish();

 private:
  void plan();
  void take_folder();
  void make_engine();
  void open_reports();
  void print_start();
  void mark(std::string_view part);
  void write_summary();

  RunFlags& flags_;
  StartedRun started_;
  TrainerArgs args_;
  DeviceKind device_;
  std::optional<RunPlan> plan_;
  std::optional<Disks> disks_;
  RunRoom room_;
  std::optional<TakenFolders> folders_;
  std::unique_ptr<Engine> engine_;
  std::optional<DumpOnSignal> dump_on_signal_;
  ResumedRun resumed_;
  std::optional<MetricsWriter> metrics_;
  std::unique_ptr<StatusServer> status_;
  std::optional<RunEvaluation> evaluation_;
  std::optional<RunCheckpoints> checkpoints_;
};

}  // namespace tandem
