// engine/engine.hpp — the training engine as its users see it: DeepSpeed's initialize,
// forward/backward/step, train_step.
//
//   Engine engine({.model = model, .config = load_config("ds.json", 1), .dataset = data});
//   while (auto result = engine.train_step()) { ... }                       // the loader's batches
//   loss = engine.forward(batch); engine.backward(loss); engine.step();     // or DeepSpeed's loop
//
// Calls block and come from one thread, which is the rank's loop thread during a call. Between two
// calls updates of the last step may still be running on the pool; a call that needs the newest
// weights waits for those alone. With several ranks every call that runs the model or visits
// parameters is a collective: all ranks make the same calls in the same order. If a rank leaves a
// call out, the others fail at their deadline and name that rank.
//
// A call in a wrong order or with invalid arguments throws Error and changes nothing. After a
// failure within a step or a load, every further call that runs the model throws an Error that says
// so.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/config/config.hpp"
#include "engine/data/dataset.hpp"
#include "engine/data/loader.hpp"
#include "engine/device/core_plan.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/layout/resident_bytes.hpp"
#include "engine/metrics/comms_summary.hpp"
#include "engine/metrics/flops_profile.hpp"
#include "engine/metrics/matmul_rate.hpp"
#include "engine/plan/run_plan.hpp"
#include "engine/run/reporting.hpp"
#include "engine/tensors/segment.hpp"
#include "engine/types/checkpoint.hpp"
#include "engine/types/evaluation.hpp"
#include "engine/types/options.hpp"
#include "engine/types/parameter_group.hpp"
#include "engine/types/step_result.hpp"
#include "runtime/task.hpp"

namespace tandem {

class EventLoop;

/// A config, or a DeepSpeed JSON (a path or a text) that is parsed for the run's number of ranks.
class ConfigSource {
 public:
  static ConfigSource of_text(std::string json);
  ConfigSource(Config config) : config_(std::move(config)) {}  // NOLINT: converts on purpose
  ConfigSource(std::string path) : path_(std::move(path)) {}   // NOLINT
  ConfigSource(const char* path) : path_(path) {}              // NOLINT
  [[nodiscard]] Config resolve(std::int64_t world_size) const;

 private:
  std::optional<Config> config_;
  std::string path_;
  std::string text_;
};

struct InitializeArgs {
  Model model;
  ConfigSource config;
  EngineOptions options;
  /// The plan that plan_run() made from the members above; its options replace `options`. Absent:
  /// the engine plans the run itself (EngineOptions::plans_run). If a planned run does not fit,
  /// DoesNotFit is thrown.
  std::optional<RunPlan> plan;
  std::shared_ptr<const Dataset> dataset;  // null: the caller hands in batches
  std::int64_t epochs = 0;                 // of the dataset; 0: without end
  std::uint64_t seed = 0;                  // of the shuffle
  PrefetchOptions prefetch;                // of the loader
  /// Returns the learning rate of optimizer step n (1-based); replaces the config's schedule.
  std::function<double(std::int64_t)> learning_rate;
  /// Names and values of further settings of the caller that affect the run's numbers. Checkpoints
  /// keep them, and load_checkpoint() returns a note for each that differs.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ParameterGroup> parameter_groups;  // none: one with the optimizer block's values
  std::shared_ptr<Communicator> communicator;    // null: this process alone
};

/// The loss of one micro-batch, or a multiple of it, for backward(). A weighted loss:
/// engine.backward(loss * 0.5).
struct Loss {
  float value = 0;
  std::int64_t forward = -1;  // number of its forward(); -1: no graph was kept
  double factor = 1;          // of that forward()'s loss

  friend Loss operator*(Loss loss, double by) noexcept {
    return {static_cast<float>(static_cast<double>(loss.value) * by), loss.forward,
            loss.factor * by};
  }
  friend Loss operator*(double by, Loss loss) noexcept { return loss * by; }
  friend Loss operator/(Loss loss, double by) noexcept { return loss * (1 / by); }
};

class Engine {
 public:
  struct Impl;
  explicit Engine(InitializeArgs args);
  ~Engine();
  Engine(Engine&& other) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs one optimizer step on the loader's next micro-batches; returns nullopt when all epochs
  /// have ended.
  std::optional<StepResult> train_step();
  /// Runs one optimizer step on the caller's micro-batches. Any number is possible, but it must be
  /// the same on all ranks (else every rank throws Error). The gradient is the mean over them. A
  /// run of one rank with gradients of 16 bits or weights on NVMe takes more than one only if the
  /// config's gradient_accumulation_steps is above 1. Throws Error within a step that forward()
  /// began.
  StepResult train_step(std::span<const Batch> micro_batches);

  /// For programs that are coroutines or actors themselves: they run on the rank's loop and await
  /// the step as a task. One step at a time; no blocking call may run meanwhile.
  ///   engine.loop().run(&my_main, &engine);
  ///   StepResult result = co_await engine.train_step_on_loop({batch});  // in my_main
  [[nodiscard]] EventLoop& loop();
  Task<StepResult> train_step_on_loop(std::vector<Batch> micro_batches);

  /// DeepSpeed's loop. forward() keeps what backward() needs. Call step() after each backward(): at
  /// the gradient accumulation boundary it updates the weights and returns the step's result;
  /// before that it returns nullopt.
  Loss forward(Batch batch);
  /// Computes the gradients of `loss`, which must be the last forward()'s loss or a multiple of it;
  /// any other throws Error and changes nothing. A step's result reports forward()'s loss, without
  /// the factor.
  void backward(const Loss& loss);
  std::optional<StepResult> step();
  [[nodiscard]] bool is_gradient_accumulation_boundary() const;

  /// Sets the mode, between steps. In evaluation mode forward() returns the loss and keeps nothing
  /// for a backward().
  void train(bool mode = true);
  void eval();
  [[nodiscard]] bool training() const;

  /// Returns the loss of a batch with the newest weights; no gradient, no side effect.
  float evaluate(Batch batch);
  /// Returns the losses of the whole `dataset` with the newest weights, as sums with the same bits
  /// on any number of ranks. Each rank runs a part of the micro-batches, whose number need not be a
  /// multiple of the ranks. Between steps; collective. It does not affect the training.
  EvalSums evaluate_sums(const Dataset& dataset, EvaluateArgs args = {});
  Task<EvalSums> evaluate_sums_on_loop(std::shared_ptr<const Dataset> dataset, EvaluateArgs args);
  /// Returns the logits of a batch with the newest weights, in fp32: [B, T, V], or [B, classes] for
  /// features. With Batch::memory the batch continues the texts there: the result is [B, 1, V], and
  /// the memory then includes the batch's tokens.
  at::Tensor logits(Batch batch);

  /// Waits until no update is running.
  void drain();
  /// Calls `visit` for every parameter that is `wanted` (all, by default), in the model's order,
  /// with its fp32 values (the master weights); drains first. The span is valid during the call.
  /// Units without a wanted parameter are neither gathered nor read. Collective: `wanted` must
  /// answer alike on all ranks.
  void for_each_parameter(
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit,
      const std::function<bool(const ParameterSpec&)>& wanted = {});

  /// Calls `visit` for every parameter with its fp32 gradient accumulated so far; call it after a
  /// backward() and before its step().
  void for_each_gradient(
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit);

  /// Saves a checkpoint and waits until it is on disk. Between steps; collective. A failed save
  /// changes neither the run nor older checkpoints; the outcome says why it failed.
  CheckpointOutcome save_checkpoint(const std::string& save_dir, const std::string& tag = "",
                                    const std::string& client_state = "{}");
  /// Begins to save the present state; the files are written while further steps run. A save that
  /// is still under way is finished first. Returns false if the save has already failed. The
  /// outcome is in the StepResult of the step with which the save ends, or finish_checkpoint()
  /// returns it.
  bool begin_checkpoint(CheckpointArgs args);
  /// Waits for the save under way and returns its outcome, or the outcome of a save that ended and
  /// was not reported yet; nullopt if there is neither.
  std::optional<CheckpointOutcome> finish_checkpoint();
  /// Resumes from a checkpoint: `load_dir`/`tag`, or without a tag `load_dir` itself or the newest
  /// whole checkpoint in it. The number of ranks, the stage, the placement and the layout of state
  /// may differ from the saved run's. Between steps; collective. Throws user_error if there is no
  /// checkpoint, if it is damaged, or if it is of another run (LoadArgs::ignored).
  LoadedCheckpoint load_checkpoint(const std::string& load_dir, const std::string& tag = "",
                                   LoadArgs args = {});
  /// Resumes from the state that another program saved: weights, moments if it has them, step
  /// counts, loss scale and the schedule's position. The data continue where the same number of
  /// this run's steps would end.
  LoadedCheckpoint load_foreign(ForeignState state);
  Task<CheckpointOutcome> save_checkpoint_on_loop(CheckpointArgs args);
  Task<LoadedCheckpoint> load_checkpoint_on_loop(std::string load_dir, std::string tag,
                                                 LoadArgs args);

  /// Requests the end of the run: the next step's result has stop_asked on every rank. Between two
  /// calls of the engine.
  void ask_to_stop();
  /// Requests a checkpoint in the same way (save_asked).
  void ask_to_save();

  /// Returns the sums over all ranks of a few numbers, added in rank order. Collective.
  [[nodiscard]] std::vector<double> sum_over_ranks(std::vector<double> values);

  void report_by(Reporting reporting);
  /// Prints comms_logger's table of this run's operations so far, as DeepSpeed's comm.log_summary()
  /// does; with `show_straggler` it compares the ranks' times. Between steps; collective.
  void log_summary(bool show_straggler = false);
  /// Returns the numbers that log_summary() prints, for this rank; the same conditions apply.
  [[nodiscard]] CommsSummary comms_summary(bool show_straggler = false);
  /// Returns this rank's profile of step flops_profiler.profile_step; null before that step, or if
  /// the profiler is off.
  [[nodiscard]] const FlopsProfile* flops_profile() const;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] const Config& config() const;
  [[nodiscard]] const Model& model() const;
  /// Learning rate of the next optimizer step.
  [[nodiscard]] double get_lr() const;
  /// The scale of the next step's gradients; 1 unless fp16.
  [[nodiscard]] double loss_scale() const;
  /// Optimizer steps, skipped ones included.
  [[nodiscard]] std::int64_t global_steps() const;
  [[nodiscard]] std::int64_t skipped_steps() const;

  // Functions with DeepSpeed's names, for ported trainers.
  [[nodiscard]] std::int64_t train_batch_size() const;  // records of a step, all ranks
  [[nodiscard]] std::int64_t train_micro_batch_size_per_gpu() const;
  [[nodiscard]] std::int64_t gradient_accumulation_steps() const;
  /// Returns the three numbers above, in this order.
  [[nodiscard]] std::array<std::int64_t, 3> get_batch_info() const;
  [[nodiscard]] std::int64_t global_samples() const;  // of all steps so far
  [[nodiscard]] std::int64_t micro_steps() const;     // of this rank
  [[nodiscard]] int get_data_parallel_rank() const { return rank(); }
  /// Returns the gradient norm of the last step before clipping; NaN before the first step and
  /// after a skipped one.
  [[nodiscard]] double get_global_grad_norm() const;
  /// Whether the last step changed the weights; false before the first one.
  [[nodiscard]] bool was_step_applied() const;
  [[nodiscard]] std::string get_type() const;  // of the optimizer, as the config names it
  /// Returns beta1 and beta2 of the next step; for SGD and Muon, momentum and 0.
  [[nodiscard]] std::array<double, 2> get_mom() const;

  /// Returns the number of optimizer steps in the loader's epochs; nullopt if they never end, or
  /// without a loader.
  [[nodiscard]] std::optional<std::int64_t> steps_in_epochs() const;
  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] std::size_t gather_slots() const;
  [[nodiscard]] int compute_threads() const;
  [[nodiscard]] int optimizer_threads() const;
  /// The CPUs of this rank by their use.
  [[nodiscard]] const CorePlan& cores() const;
  /// Measures the peak to which model FLOPs utilisation refers: one matmul (1024 cubed on a CPU,
  /// 8192 cubed on a GPU) on the run's threads, several times by the library and, on a CPU, by
  /// `own`, in the compute type and in fp32. Returns the rates of the fastest of these kinds.
  MatmulRate measure_peak(MatmulOf own = {});
  /// Returns the bytes of weights, optimizer state, gradients and slots; activations come on top.
  [[nodiscard]] ResidentBytes resident_bytes() const;

 private:
  friend struct Initialized initialize(InitializeArgs args);
  std::shared_ptr<Impl> impl_;
};

}  // namespace tandem
