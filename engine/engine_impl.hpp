// engine/engine_impl.hpp — the implementation of Engine: a rank, its step, and the other objects of
// a run. Internal.
//
// A step reads top to bottom in engine_impl.cpp: begin_step(), (forward(), backward()) for each
// micro-batch, finish().
// Invariant: what a step decides (skip, loss scale, learning rate) follows from values that are the
// same on all ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/engine.hpp"
#include "engine/run/all_ranks.hpp"
#include "engine/run/data_feed.hpp"
#include "engine/run/engine_checkpoints.hpp"
#include "engine/run/evaluator.hpp"
#include "engine/run/row_groups.hpp"
#include "engine/run/run_counters.hpp"
#include "engine/run/step_clock.hpp"
#include "engine/run/step_exchange.hpp"
#include "engine/run/step_rates.hpp"
#include "engine/run/step_reports.hpp"
#include "engine/run/tensor_rank.hpp"
#include "engine/step/loss_scaler.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

struct Engine::Impl {
  explicit Impl(InitializeArgs arguments);
  ~Impl();

  // Wrong calls are refused before they change anything.
  void require_between_steps(std::string_view call) const;
  /// With several ranks, throws user_error within a step until its last backward() has ended,
  /// because the step's remaining gathers come before any others.
  void require_no_gathers_ahead(std::string_view call) const;
  /// Throws user_error if a step cannot have that number of the caller's micro-batches.
  void require_step_of(std::size_t micro_batches) const;
  /// Throws Error if an earlier call failed within a step or a load, because the engine cannot
  /// continue then.
  void require_whole() const;

  /// Runs a coroutine on the loop. If it fails, so does this rank: its peers are notified and need
  /// not wait for it (fail()).
  template <class Function, class... Arguments>
  auto run(Function function, Arguments... arguments) {
    require_whole();
    try {
      return rank.loop().run(function, std::move(arguments)...);
    } catch (...) {
      fail(std::current_exception());
    }
  }
  /// The same, but a user error is thrown on every rank alike, so no rank is aborted.
  template <class Function, class... Arguments>
  auto run_agreement(Function function, Arguments... arguments) {
    try {
      return rank.loop().run(function, std::move(arguments)...);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kUserInput) {
        throw;
      }
      fail(std::current_exception());
    }
  }
  /// Notifies the peers of the cause and throws it. A bad state, which every rank finds after the
  /// same step, is only thrown.
  [[noreturn]] void fail(std::exception_ptr error);

  // One step.
  void begin_step(std::size_t micro_batches);
  Task<> forward(Batch batch);
  /// `factor`: multiplies the last micro-batch's loss.
  Task<> backward(double factor = 1);
  Task<StepResult> finish();
  /// Runs a whole step on the caller's micro-batches, on which the ranks have agreed.
  Task<StepResult> step_on(std::vector<Batch> batches);
  /// Runs a whole step on the loader's next micro-batches.
  Task<StepResult> step_on_loader();

  /// Returns the learning rate of optimizer step `n`, from 1.
  [[nodiscard]] double rate_of(std::int64_t n) const {
    return rates.rate(n + counters.schedule_offset);
  }
  /// Returns the number of the next optimizer step.
  [[nodiscard]] std::int64_t next_step() const noexcept { return counters.applied_steps + 1; }

  // Checkpoints, between steps.
  Task<bool> begin_checkpoint(CheckpointArgs args);
  Task<std::optional<CheckpointOutcome>> finish_checkpoint();

  std::shared_ptr<Communicator> communicator;
  Config config;
  StepRates rates;
  std::optional<LossScaler> scaler;  // fp16 only
  std::size_t accumulation = 1;
  RowGroups groups;
  TensorRank tensors;
  Rank& rank;  // of `tensors`
  TrainStep step;
  RunCounters counters;
  OpenChange change;
  std::optional<DataFeed> feed;  // absent: batches are handed in
  AllRanks all_ranks;
  StepExchange exchange;
  StepClock clock;
  StepReports reports;
  Evaluator evaluator;
  EngineCheckpoints checkpoints;

  bool training = true;
  std::optional<Verdict> last_verdict;
  bool stop_asked = false;  // by this rank
  bool save_asked = false;  // likewise

  // The step in flight.
  std::size_t step_micro_batches = 1;  // of this rank
  std::size_t micro_step = 0;
  bool forward_pending = false;
  bool looks = false;  // for the first activation that is not finite

 private:
  /// Returns the factor of the last micro-batch's loss in the gradients: the loss scale times its
  /// share of the step's labels (LossMean::kTokens), or times 1 / the step's micro-batches on all
  /// ranks.
  [[nodiscard]] double loss_gradient() const;
  [[nodiscard]] TrainStep::Update update_of_step() const;
  /// Counts the step's verdict. Returns true if too many steps in a row were skipped.
  [[nodiscard]] bool count(const Verdict& verdict);
  [[nodiscard]] int skips_allowed() const { return rank.options().shape.engine.max_skipped_steps; }
  /// Returns the error that says why they were skipped, as far as that can be found. Collective.
  Task<Error> bad_state(double loss, std::string bad_gradient);
};

}  // namespace tandem
