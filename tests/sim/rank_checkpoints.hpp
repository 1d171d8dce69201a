// tests/sim/rank_checkpoints.hpp — a rehearsed rank's part in the checkpoints of its training: the
// real CheckpointWriter beside the steps, and what a start finds.
//
// Ranks agree between two steps on what happens next, so a save that fails on one of them fails on
// all, and training goes on. The files are laid out as the engine does it (CheckpointLayout).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "actors/checkpoint/checkpoint_writer.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"

namespace tandem::sim_test {

class TrainingRank;

/// Where ranks put what the engine sends to rank 0.
struct CheckpointMeeting {
  std::uint64_t start = 1;  // the program's number: no two starts use the same temporary names
  std::vector<ManifestFile> entries;
  std::uint64_t committed_step = 0;  // the last that commit() has said to be durable; 0: none
  std::uint64_t failed_saves = 0;
};

class RankCheckpoints {
 public:
  static constexpr const char* kParent = "run";

  RankCheckpoints(TrainingRank& owner, CheckpointMeeting& meeting);

  void start(Scope& actors);
  void close();
  /// After a step: begins and ends saves as the plan says.
  Task<> after_step();
  /// Sets the rank's state to that of the newest whole checkpoint; its step, 0 where there is none.
  Task<std::uint64_t> load();
  [[nodiscard]] std::uint64_t start_number() const noexcept { return meeting_.start; }

 private:
  Task<> begin();
  Task<> finish();
  static Task<> write(RankCheckpoints* self);
  /// Reads the tensors of a file into loaded_.
  Task<> load_file(const PlannedFile* file, std::string path);
  /// Whether all ranks say so.
  Task<bool> agree(bool ok);

  TrainingRank& owner_;
  CheckpointMeeting& meeting_;
  CheckpointLayout layout_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<CheckpointSave> save_;
  std::uint64_t saved_step_ = 0;
  std::uint64_t write_until_ = 0;  // the step after which the ranks wait for it
  Event written_;
  bool write_failed_ = false;
  std::map<std::string, std::vector<float>> loaded_;  // "master-...: unit 0"
};

}  // namespace tandem::sim_test
