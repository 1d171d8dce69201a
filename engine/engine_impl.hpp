// engine/engine_impl.hpp — the inside of Engine: a rank, its step, and the counters that a run is
// made of. Internal.
//
// Invariant: what a step decides (skip, loss scale, learning rate) follows from values that are the
// same on all ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "actors/data_prefetch.hpp"
#include "engine/checkpoint/checkpointer.hpp"
#include "engine/checkpoint/run_state.hpp"
#include "engine/data/loader.hpp"
#include "engine/engine.hpp"
#include "engine/rank/rank.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/step/loss_scaler.hpp"
#include "engine/step/train_step.hpp"
#include "engine/tensor_rank.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

class CheckpointLoad;

/// Owned copies of a host batch as tensors. Compute lane.
[[nodiscard]] Batch to_tensors(const HostBatch& host);

/// Checked: every parameter names one of them. Without `decay_norms` each has a second one behind
/// all of them, for its norms and biases, which go there.
[[nodiscard]] std::vector<ParameterGroup> groups_of(InitializeArgs& arguments, bool decay_norms);

/// TFLOP/s of one matmul: Engine::measure_peak_tflops().
Task<double> peak_tflops(TensorRank* rank, MatmulOf own);

struct Engine::Impl {
  explicit Impl(InitializeArgs arguments);
  ~Impl();

  void start_loader(std::shared_ptr<const Dataset> dataset, std::int64_t epochs, std::uint64_t seed,
                    const PrefetchOptions& ahead);
  /// Makes batches from micro-batch `first` of this rank on.
  void start_prefetch(std::int64_t first);
  [[nodiscard]] std::int64_t batches_taken_of(const RunState& state) const;
  // Wrong calls are refused before they have changed anything: the engine is as before.
  void require_between_steps(std::string_view call) const;
  /// Gathers of a step that goes on have their turn before others.
  void require_no_gathers_ahead(std::string_view call) const;
  /// How many micro-batches a step of the caller's may have.
  void require_step_of(std::size_t micro_batches) const;
  [[nodiscard]] double rate_of(std::int64_t optimizer_step) const;
  /// Where the schedule moves them.
  [[nodiscard]] std::optional<std::array<double, 2>> betas_of(std::int64_t optimizer_step) const {
    return schedule.betas_at(optimizer_step + schedule_offset);
  }
  /// Factor of the last micro-batch's loss in the gradients. Without a share the objective is the
  /// mean over micro-batches and ranks.
  [[nodiscard]] double loss_gradient() const;
  /// Groups of ranks that have micro-batches of their own, and this rank's among them; the ranks of
  /// a group share each row.
  [[nodiscard]] std::int64_t groups_of_ranks() const { return config.data_ranks(); }
  [[nodiscard]] std::int64_t group_of_rank() const {
    return communicator->rank() / config.sequence_parallel_size;
  }
  /// Whether this rank speaks for its group in what is counted once.
  [[nodiscard]] bool counts_for_group() const { return rank.row_sharing().place == 0; }
  [[nodiscard]] bool means_tokens() const {
    return rank.layout().shape.engine.loss_mean == LossMean::kTokens;
  }

  /// Runs a coroutine on the loop. A failure is this rank's end: its peers are told, and need not
  /// wait for it.
  template <class Function, class... Arguments>
  auto run(Function function, Arguments... arguments) {
    require_whole();
    try {
      return rank.loop().run(function, std::move(arguments)...);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  /// Tells the peers why, and throws the cause.
  [[noreturn]] void fail(std::exception_ptr error);
  /// Throws where a call failed within a step, or amid a load: what it left cannot be gone on with.
  void require_whole() const;

  // One step: begin, (forward, backward) for each micro-batch, finish.
  void begin_step(std::size_t micro_batches);
  /// The loader's next micro-batch as tensors; nullopt past the last epoch.
  Task<std::optional<Batch>> next_batch();
  Task<> forward(Batch batch);
  /// `factor` on the last micro-batch's loss.
  Task<> backward(double factor = 1);
  Task<StepResult> finish();
  Task<std::vector<std::byte>> of_all_ranks(std::vector<std::byte> mine);
  /// Throws the same on every rank where their steps have different numbers of micro-batches: they
  /// would wait for each other's gathers for ever. A collective.
  Task<> require_equal_counts(std::size_t micro_batches);
  // Checkpoints (engine_checkpoint.cpp).
  Task<bool> begin_checkpoint(CheckpointArgs args);
  Task<std::optional<CheckpointOutcome>> finish_checkpoint();
  Task<LoadedCheckpoint> load_checkpoint(std::string folder, std::string tag, LoadArgs args);
  Task<LoadedCheckpoint> load_foreign(ForeignState state);
  [[nodiscard]] RunState run_state() const;
  /// RunState::base of what checkpoints leave out. A collective.
  Task<std::vector<std::pair<std::string, std::uint64_t>>> base_sums();
  /// Between steps (engine_evaluate.cpp).
  Task<EvalSums> evaluate_sums(const Dataset* dataset, EvaluateArgs args);

  // Reports that the config asks for (engine_reports.cpp).
  /// Makes the folder of flops_profiler.output_file.
  void check_reports() const;
  /// Behind a step; only where reports_steps().
  Task<> report(StepResult result);
  Task<CommsSummary> comms_summary(bool compare);
  /// On rank 0, elsewhere nothing.
  void say(std::string_view text) const;
  [[nodiscard]] bool reports_steps() const noexcept {
    return config.wall_clock_breakdown || config.flops_profiler.enabled ||
           config.comms_logger.enabled;
  }

  /// Forward alone: the loss or the logits of `batch`, in host memory.
  Task<at::Tensor> infer(Batch batch, HeadOutput output);

  /// All of it, on micro-batches of the caller.
  Task<StepResult> step_on(std::vector<Batch> batches);

  std::shared_ptr<Communicator> communicator;
  Config config;
  LrSchedule schedule;
  std::function<double(std::int64_t)> learning_rate;
  std::vector<std::pair<std::string, std::string>> settings;  // InitializeArgs'
  std::vector<ParameterGroup> groups;                         // one at least
  std::optional<LossScaler> scaler;                           // fp16 only
  std::size_t accumulation = 1;
  std::optional<Loader> loader;  // outlives the prefetch actor, whose workers call it
  TensorRank tensors;
  Rank& rank;  // of it
  TrainStep step;
  std::optional<CpuPool> data_pool;
  PrefetchOptions prefetch_options;
  // The last one makes batches; those before it were closed when a checkpoint was loaded.
  std::vector<std::unique_ptr<DataPrefetch<HostBatch>>> prefetches;
  std::string data_fingerprint;
  std::uint64_t shuffle_seed = 0;
  std::unique_ptr<Checkpointer> checkpointer;  // from the first save on

  Reporting reporting;
  std::optional<FlopsProfile> flops_profile;

  bool training = true;
  std::optional<Verdict> last_verdict;
  bool stop_asked = false;         // by this rank
  bool save_asked = false;         // likewise
  std::int64_t batches_taken = 0;  // of the loader
  std::int64_t micro_batches = 0;  // of this rank, trained on so far
  std::int64_t global_steps = 0;
  std::int64_t applied_steps = 0;
  /// Steps of the learning rate's schedule beyond the applied ones: of a run that came from another
  /// program, which may count them apart.
  std::int64_t schedule_offset = 0;
  std::int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;  // but while an fp16 loss scale falls

  // The step in flight.
  std::size_t step_micro_batches = 1;  // of this rank
  std::size_t micro_step = 0;
  bool forward_pending = false;
  bool looks = false;  // for the first activation that is not finite

 private:
  /// The figures of a step that ranks tell each other, beside its losses.
  struct Share {
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    std::int64_t longest = 0;
    std::int64_t unlabelled = 0;  // micro-batches without a label
    bool stop = false;
    bool save = false;
    Checkpointer::Phase checkpoint = Checkpointer::Phase::kIdle;
  };

  [[nodiscard]] TrainStep::Update update_of_step(double rate) const;
  [[nodiscard]] Checkpointer& checkpoints();
  Task<LoadedCheckpoint> load_whole(CheckpointLoad* load, LoadArgs args);
  /// `load`: brings each unit's elements first; null: they are there.
  Task<> restore_tensors(const StateSource* source, bool moments, CheckpointLoad* load);
  void restore(const RunState& state);
  /// `result` with the counts and losses of all ranks in it.
  Task<StepResult> share_with_ranks(StepResult result);
  /// True: too many steps in a row were skipped.
  [[nodiscard]] bool count(const Verdict& verdict);
  [[nodiscard]] int skips_allowed() const { return rank.options().shape.engine.max_skipped_steps; }
  /// Why they were, as far as it can be known. Collectives.
  Task<std::string> bad_activation();
  Task<Error> bad_state(double loss, std::string bad_gradient);
  void measure(StepResult& result);
  /// Fills in result.phases: of finish(), which took `finish_s`, `reduce_s` belongs to backward.
  void measure_phases(StepResult& result, double finish_s, double reduce_s);
  Task<FlopsProfile> profile_of(StepResult result);

  /// Gives the step's micro-batches their shares of its labels, where they have none.
  Task<> set_loss_shares(std::vector<Batch>* batches);
  /// Takes down whether it has a label, and fills in its label_count where that can be known.
  Task<> note_labels(Batch* batch);

  std::vector<float> losses_;        // of this rank, by micro-step
  std::vector<double> loss_shares_;  // likewise, where tokens are what is averaged
  Share share_;
  std::vector<Checkpointer::Phase> checkpoint_phases_;  // of all ranks, at this step's exchange
  std::vector<BatchExtents> extents_;                   // by micro-step
  PhaseTimes phases_;                                   // of the micro-steps so far
  PhaseTimes last_micro_step_;
  double data_wait_s_ = 0;
  double checkpoint_wait_s_ = 0;  // between steps
  Busy busy_at_start_;
  Stopwatch watch_;
  bool is_torn_ = false;  // a step or a load has begun and has not ended
  std::optional<Error> torn_by_;
};

}  // namespace tandem
