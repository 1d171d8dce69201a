// engine/run/engine_checkpoints.hpp — saves and loads a run: its tensors (Checkpointer), and its
// counts and settings (RunState).
//
// Thread rule: the loop's thread, between steps. Each call is a collective.
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
#include "runtime/io/file_io.hpp"

namespace tandem {

class CheckpointLoad;

class EngineCheckpoints {
 public:
  /// The parts of the run whose state is saved and restored; they outlive this object.
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

  /// As Engine's begin_checkpoint(), finish_checkpoint(), load_checkpoint() and load_foreign().
  Task<bool> begin(CheckpointArgs args);
  Task<std::optional<CheckpointOutcome>> finish();
  Task<LoadedCheckpoint> load(std::string folder, std::string tag, LoadArgs args);
  Task<LoadedCheckpoint> load_foreign(ForeignState state);

  /// Returns the phase of the save under way; kIdle if there is none.
  [[nodiscard]] Checkpointer::Phase phase() const noexcept {
    return checkpointer_ ? checkpointer_->phase() : Checkpointer::Phase::kIdle;
  }
  /// Advances the save under way after a step, given the phases of all ranks in rank order. Returns
  /// the outcome of a save that has ended.
  Task<std::optional<CheckpointOutcome>> advance(std::vector<Checkpointer::Phase> of_ranks);
  /// Drops a save under way; no task of it runs afterwards. Blocks, so the loop must not be
  /// running.
  void end();

 private:
  [[nodiscard]] Checkpointer& checkpointer();
  [[nodiscard]] RunState run_state() const;
  /// Returns RunState::base: the checksums of the values that checkpoints leave out. Collective.
  Task<std::vector<std::pair<std::string, std::uint64_t>>> base_sums();
  Task<LoadedCheckpoint> load_whole(CheckpointLoad* load, LoadArgs args);
  /// Restores all units from `source`. `load` fetches each unit's elements first; null: the source
  /// has all of them.
  Task<> restore_tensors(const StateSource* source, bool moments, CheckpointLoad* load);
  void restore(const RunState& state);
  /// Returns the number of this rank's micro-batches that contain the records that the saved run
  /// has seen.
  [[nodiscard]] std::int64_t batches_taken_of(const RunState& state) const;

  Parts parts_;
  std::optional<FileIo> io_;
  std::unique_ptr<Checkpointer> checkpointer_;  // from the first save on
};

}  // namespace tandem
