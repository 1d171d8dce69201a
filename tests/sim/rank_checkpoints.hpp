// tests/sim/rank_checkpoints.hpp — a rehearsed rank's part in the checkpoints of its training: the
// Checkpointer that ships beside the steps, and what a start finds with the CheckpointLoad that
// ships.
//
// Only the reader of tensors is replaced, because the one that ships maps files of the machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_load.hpp"
#include "engine/checkpoint/checkpointer.hpp"

namespace tandem::sim_test {

class TrainingRank;

/// Rank 0's knowledge of the saves of a start.
struct CheckpointMeeting {
  std::uint64_t start = 1;  // the program's number: no two starts use the same temporary names
  std::uint64_t committed_step = 0;  // the last that a save has said to be durable; 0: none
  std::string save_error;            // of the last save that failed
};

class RankCheckpoints {
 public:
  static constexpr const char* kParent = "run";

  RankCheckpoints(TrainingRank& owner, CheckpointMeeting& meeting);

  void start();
  Task<> end();
  /// After a step: begins, advances and ends saves as the plan says.
  Task<> after_step();
  /// Sets the rank's state to that of the newest checkpoint; its step, 0 where there is none.
  Task<std::uint64_t> load();
  [[nodiscard]] std::uint64_t start_number() const noexcept { return meeting_.start; }

 private:
  [[nodiscard]] Checkpointer::Machine machine();
  void take_outcome();
  Task<> restore(CheckpointLoad* load);
  Task<> load_file(const ManifestFile* file, std::string path, CheckpointSource* into);

  TrainingRank& owner_;
  CheckpointMeeting& meeting_;
  std::unique_ptr<Checkpointer> saves_;
  std::uint64_t write_until_ = 0;  // the step after which the ranks wait for a save
  std::uint64_t ids_ = 0;          // that were made
};

}  // namespace tandem::sim_test
