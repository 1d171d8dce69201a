// engine/run/engine_checkpoints.hpp — a run's checkpoints: the state of a run beside its tensors,
// saved and taken on.
//
// Thread rule: the loop's thread. Between steps; each call is a collective.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpointer.hpp"
#include "engine/checkpoint/run_state.hpp"
#include "engine/run/all_ranks.hpp"
#include "engine/run/data_feed.hpp"
#include "engine/run/row_groups.hpp"
#include "engine/run/run_counters.hpp"
#include "engine/step/loss_scaler.hpp"
#include "engine/types/checkpoint.hpp"

namespace tandem {

class CheckpointLoad;

class EngineCheckpoints {
 public:
  /// The parts of the run that its state is of; they outlive this.
  struct Parts {
    const Config* config = nullptr;
    const Communicator* communicator = nullptr;
    Rank* rank = nullptr;
    TrainStep* step = nullptr;
    AllRanks* ranks = nullptr;
    RunCounters* counters = nullptr;
    OpenChange* change = nullptr;
    std::optional<LossScaler>* scaler = nullptr;
    std::optional<DataFeed>* feed = nullptr;
    RowGroups groups;
    std::int64_t accumulation = 1;  // micro-batches of this rank in a step
    std::vector<std::pair<std::string, std::string>> settings;  // InitializeArgs'
  };
  explicit EngineCheckpoints(Parts parts) : parts_(std::move(parts)) {}

  /// As Engine's functions of these names.
  Task<bool> begin(CheckpointArgs args);
  Task<std::optional<CheckpointOutcome>> finish();
  Task<LoadedCheckpoint> load(std::string folder, std::string tag, LoadArgs args);
  Task<LoadedCheckpoint> load_foreign(ForeignState state);

  /// The phase of the save under way; kIdle: there is none.
  [[nodiscard]] Checkpointer::Phase phase() const noexcept {
    return checkpointer_ ? checkpointer_->phase() : Checkpointer::Phase::kIdle;
  }
  /// Behind a step, given the phases of all ranks: goes on with the save under way. The outcome of
  /// one that ended.
  Task<std::optional<CheckpointOutcome>> advance(std::vector<Checkpointer::Phase> of_ranks);
  /// No task of a save runs afterwards. Blocks; not on the loop.
  void end();

 private:
  [[nodiscard]] Checkpointer& checkpointer();
  [[nodiscard]] RunState run_state() const;
  /// RunState::base of what checkpoints leave out. A collective.
  Task<std::vector<std::pair<std::string, std::uint64_t>>> base_sums();
  Task<LoadedCheckpoint> load_whole(CheckpointLoad* load, LoadArgs args);
  /// `load`: brings each unit's elements first; null: they are there.
  Task<> restore_tensors(const StateSource* source, bool moments, CheckpointLoad* load);
  void restore(const RunState& state);
  /// Micro-batches of this rank's that hold the records which the run has seen.
  [[nodiscard]] std::int64_t batches_taken_of(const RunState& state) const;

  Parts parts_;
  std::unique_ptr<Checkpointer> checkpointer_;  // from the first save on
};

}  // namespace tandem
