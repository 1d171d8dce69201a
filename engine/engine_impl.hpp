// engine/engine_impl.hpp — the inside of Engine: a rank and its step, and the objects that a run is
// made of. Internal.
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

  // Wrong calls are refused before they have changed anything: the engine is as before.
  void require_between_steps(std::string_view call) const;
  /// Gathers of a step that goes on have their turn before others.
  void require_no_gathers_ahead(std::string_view call) const;
  /// How many micro-batches a step of the caller's may have.
  void require_step_of(std::size_t micro_batches) const;
  /// Throws where a call failed within a step, or amid a load: what it left cannot be gone on with.
  void require_whole() const;

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
  /// The same; an error of the user's is every rank's, and none gives the others up.
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
  /// Tells the peers why, and throws the cause.
  [[noreturn]] void fail(std::exception_ptr error);

  // One step.
  void begin_step(std::size_t micro_batches);
  Task<> forward(Batch batch);
  /// `factor` on the last micro-batch's loss.
  Task<> backward(double factor = 1);
  Task<StepResult> finish();
  /// All of it, on micro-batches of the caller, on which the ranks agree.
  Task<StepResult> step_on(std::vector<Batch> batches);
  /// All of it, on the loader's next micro-batches.
  Task<StepResult> step_on_loader();

  /// The learning rate of optimizer step `n`, from 1.
  [[nodiscard]] double rate_of(std::int64_t n) const {
    return rates.rate(n + counters.schedule_offset);
  }
  /// The number of the next optimizer step.
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
  Rank& rank;  // of it
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
  /// Factor of the last micro-batch's loss in the gradients. Without a share the objective is the
  /// mean over micro-batches and ranks.
  [[nodiscard]] double loss_gradient() const;
  [[nodiscard]] TrainStep::Update update_of_step() const;
  /// True: too many steps in a row were skipped.
  [[nodiscard]] bool count(const Verdict& verdict);
  [[nodiscard]] int skips_allowed() const { return rank.options().shape.engine.max_skipped_steps; }
  /// Why they were, as far as it can be known. A collective.
  Task<Error> bad_state(double loss, std::string bad_gradient);
};

}  // namespace tandem
