// engine/engine.hpp — the training engine as its users see it: DeepSpeed's initialize,
// forward/backward/step, train_step.
//
//   Engine engine({.model = model, .config = load_config("ds.json", 1), .dataset = data});
//   while (auto result = engine.train_step()) { ... }                       // the loader's batches
//   loss = engine.forward(batch); engine.backward(loss); engine.step();     // or DeepSpeed's loop
//
// Blocking calls from one thread, which is the rank's loop thread while a call runs. Between two
// calls updates of the last step may still be running on the pool; every call that needs the newest
// weights waits for just those. With several ranks every call that runs the model or visits
// parameters is a collective: all ranks make the same calls in the same order. A rank that leaves
// one out makes the others fail by their deadline, naming it.
//
// A call in a wrong order, or with what it cannot take, is an Error and changes nothing. After a
// failure amid a step or a load every further call that runs the model is an Error that says so.
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

/// A config, or a DeepSpeed JSON (a path, or text) that is read for as many ranks as take part.
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
  /// Made by plan_run() from the above, whose options it completes; absent: the engine makes it,
  /// and throws DoesNotFit where the run does not fit (EngineOptions::plans_run).
  std::optional<RunPlan> plan;
  std::shared_ptr<const Dataset> dataset;  // may be null: then batches are handed in
  std::int64_t epochs = 0;                 // of the dataset; 0: without end
  std::uint64_t seed = 0;                  // of the shuffle
  PrefetchOptions prefetch;                // of the loader
  /// Learning rate of optimizer step n (1-based) instead of the config's schedule.
  std::function<double(std::int64_t)> learning_rate;
  /// Further settings of the caller that decide the numbers, as names and values: checkpoints keep
  /// them, and load_checkpoint() has a note for each that differs.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ParameterGroup> parameter_groups;  // none: one with the optimizer block's values
  std::shared_ptr<Communicator> communicator;    // null: this process alone
};

/// The loss of one micro-batch, or a multiple of it, to be handed to backward(). Where losses are
/// weighed: engine.backward(loss * 0.5).
struct Loss {
  float value = 0;
  std::int64_t forward = -1;  // the forward() that it came from; -1: of none that keeps a graph
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

  /// One optimizer step on the loader's next micro-batches; nullopt when all epochs have ended.
  std::optional<StepResult> train_step();
  /// One optimizer step on micro-batches of the caller: any number of them, the same on all ranks
  /// (else an Error on each); the gradient is their mean. In 16 bits one rank takes more than one
  /// where the config's gradient_accumulation_steps is above 1. A call within a step of forward()
  /// is an Error.
  StepResult train_step(std::span<const Batch> micro_batches);

  /// For programs that are actors or coroutines themselves: they run on the rank's loop, and the
  /// step is a task there. One step at a time, and none of the blocking calls meanwhile.
  ///   engine.loop().run(&my_main, &engine);
  ///   StepResult result = co_await engine.train_step_on_loop({batch});  // in my_main
  [[nodiscard]] EventLoop& loop();
  Task<StepResult> train_step_on_loop(std::vector<Batch> micro_batches);

  /// DeepSpeed's loop. forward() keeps what backward() needs; step() is due after each backward()
  /// and acts at the gradient accumulation boundary: then it returns the step's result.
  Loss forward(Batch batch);
  /// The gradients of `loss`, which is the last forward()'s or a multiple of it; any other is an
  /// Error, and changes nothing. Steps go on to report the loss of forward().
  void backward(const Loss& loss);
  std::optional<StepResult> step();
  [[nodiscard]] bool is_gradient_accumulation_boundary() const;

  /// In evaluation mode forward() gives the loss and keeps nothing for a backward(). Between steps.
  void train(bool mode = true);
  void eval();
  [[nodiscard]] bool training() const;

  /// Loss of a batch with the newest weights; no gradient, no side effect.
  float evaluate(Batch batch);
  /// Losses of the whole `dataset` with the newest weights, as sums with the same bits on any
  /// number of ranks; each rank runs a part of the micro-batches, and their number need not be a
  /// multiple of the ranks. Between steps; a collective; training goes on as without it.
  EvalSums evaluate_sums(const Dataset& dataset, EvaluateArgs args = {});
  Task<EvalSums> evaluate_sums_on_loop(std::shared_ptr<const Dataset> dataset, EvaluateArgs args);
  /// Logits fp32 of a batch with the newest weights: [B, T, V], of features [B, classes]. With
  /// Batch::memory the texts in it are continued: [B, 1, V], and the memory has these tokens
  /// afterwards.
  at::Tensor logits(Batch batch);

  /// Waits until no update is running.
  void drain();
  /// Visits every parameter in the model's order with its fp32 value (the master weights); drains
  /// first. The span is valid during the call.
  void for_each_parameter(
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit);

  /// Visits the fp32 gradients accumulated so far, after a backward() and before its step().
  void for_each_gradient(
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit);

  /// Saves a checkpoint and waits until it is on the medium. Between steps; a collective. A save
  /// that fails leaves the run and older checkpoints as they are: the outcome says why.
  CheckpointOutcome save_checkpoint(const std::string& save_dir, const std::string& tag = "",
                                    const std::string& client_state = "{}");
  /// The same state, written while the steps that follow run; begun before it returns. One at a
  /// time: one that is still under way is finished first. False: it has failed already. The
  /// StepResult of the step with which it ends has its outcome, or finish_checkpoint().
  bool begin_checkpoint(CheckpointArgs args);
  /// Waits for the save under way; nullopt: there is none, and none that ended unheard.
  std::optional<CheckpointOutcome> finish_checkpoint();
  /// Goes on from a checkpoint: `load_dir`/`tag`, or without a tag `load_dir` itself or the newest
  /// whole one in it. On any number of ranks, stage, placement and layout of state. Between steps;
  /// a collective. Throws user_error where there is none, where it is damaged, or where the run is
  /// another one (LoadArgs::ignored).
  LoadedCheckpoint load_checkpoint(const std::string& load_dir, const std::string& tag = "",
                                   LoadArgs args = {});
  /// Goes on from what another program saved: weights, moments where it has them, steps, loss scale
  /// and the schedule's position. Data go on where as many steps of this run would have left them.
  LoadedCheckpoint load_foreign(ForeignState state);
  Task<CheckpointOutcome> save_checkpoint_on_loop(CheckpointArgs args);
  Task<LoadedCheckpoint> load_checkpoint_on_loop(std::string load_dir, std::string tag,
                                                 LoadArgs args);

  /// This rank would like to end: the next step's result says so on every rank. Between two calls
  /// of the engine.
  void ask_to_stop();
  /// Likewise, this rank would like a checkpoint to be saved.
  void ask_to_save();

  /// The sums over all ranks of a few numbers, added in rank order.
  [[nodiscard]] std::vector<double> sum_over_ranks(std::vector<double> values);

  void report_by(Reporting reporting);
  /// Says comms_logger's table, as DeepSpeed's comm.log_summary() does: operations of this run so
  /// far. Between steps; a collective, which compares the ranks' times if `show_straggler`.
  void log_summary(bool show_straggler = false);
  /// The numbers that it prints, on every rank of that rank.
  [[nodiscard]] CommsSummary comms_summary(bool show_straggler = false);
  /// The profile of this rank's step flops_profiler.profile_step; null before it, and where it is
  /// off.
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

  // Questions that ported trainers ask, by DeepSpeed's names.
  [[nodiscard]] std::int64_t train_batch_size() const;  // records of a step, all ranks
  [[nodiscard]] std::int64_t train_micro_batch_size_per_gpu() const;
  [[nodiscard]] std::int64_t gradient_accumulation_steps() const;
  /// The three above.
  [[nodiscard]] std::array<std::int64_t, 3> get_batch_info() const;
  [[nodiscard]] std::int64_t global_samples() const;  // of all steps so far
  [[nodiscard]] std::int64_t micro_steps() const;     // of this rank
  [[nodiscard]] int get_data_parallel_rank() const { return rank(); }
  /// The norm of the last step, before clipping; NaN before the first one and after one that was
  /// skipped.
  [[nodiscard]] double get_global_grad_norm() const;
  /// Whether the last step changed the weights; false before the first one.
  [[nodiscard]] bool was_step_applied() const;
  [[nodiscard]] std::string get_type() const;  // of the optimizer, as the config names it
  /// beta1 and beta2 of the next step; of SGD momentum and 0.
  [[nodiscard]] std::array<double, 2> get_mom() const;

  /// Optimizer steps that the loader's epochs make; nullopt without end or without a loader.
  [[nodiscard]] std::optional<std::int64_t> steps_in_epochs() const;
  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] std::size_t gather_slots() const;
  [[nodiscard]] int compute_threads() const;
  [[nodiscard]] int optimizer_threads() const;
  /// The CPUs of this rank by their use.
  [[nodiscard]] const CorePlan& cores() const;
  /// TFLOP/s of one matmul (1024 cubed on a CPU, 8192 cubed on a GPU; the run's threads): the best
  /// of several by the library and, on a CPU, by `own`, in the compute type and in fp32. The peak
  /// that model FLOPs utilisation refers to.
  double measure_peak_tflops(MatmulOf own = {});
  /// Bytes of weights, optimizer state, gradients and slots; activations come on top.
  [[nodiscard]] ResidentBytes resident_bytes() const;

 private:
  friend struct Initialized initialize(InitializeArgs args);
  std::shared_ptr<Impl> impl_;
};

}  // namespace tandem
