// engine/checkpoint/checkpoint_load.hpp — loads a checkpoint on all ranks, also one whose slices
// lie on several disks: each rank reads what its own disk has, and gets the rest unit by unit.
//
//   CheckpointLoad load(saves, rank);
//   co_await load.inspect(folder, false);
//   for each of load.candidates(): if fault = co_await load.open(one); fault.empty():
//     load.take(arrays); for each unit: co_await load.fetch(unit), restore it from load.source()
//
// Invariant: nothing is read that was not hashed first, on the disk where it lies.
// Thread rule: the loop's thread; all ranks make the same calls in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_search.hpp"
#include "engine/checkpoint/checkpoint_source.hpp"
#include "engine/checkpoint/checkpointer.hpp"

namespace tandem {

class CheckpointLoad {
 public:
  /// Both outlive it.
  CheckpointLoad(Checkpointer& saves, Rank& rank);

  /// Finds the checkpoints that a user means by `folder`; with `is_one` only `folder` itself.
  /// Throws user_error if there is none.
  Task<> inspect(std::string folder, bool is_one);
  [[nodiscard]] const std::vector<Candidate>& candidates() const { return found_.candidates; }
  /// The folders with a checkpoint's name from which no run can go on, one line each.
  [[nodiscard]] const std::vector<std::string>& broken() const { return found_.broken; }
  /// Verifies the hashes on each disk, and gives a sealed checkpoint its final name. Returns why
  /// the checkpoint cannot be used; empty if it can.
  Task<std::string> open(Candidate candidate);
  /// Returns what this rank's disk has of the opened checkpoint.
  [[nodiscard]] const HeldCheckpoint& here() const { return held_[protocol_->own_disk()]; }
  /// Returns the path of the opened checkpoint, for messages.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns the step that its manifest names.
  [[nodiscard]] std::int64_t step() const { return any()->step; }
  /// Returns the content of its text file `name`.
  Task<std::string> text(std::string name);
  [[nodiscard]] bool has(std::string_view array) const { return has_array(*any(), array); }

  /// Sets the arrays to read, by name. Throws user_error if the checkpoint is of another model.
  void take(std::vector<std::string> arrays);
  /// The same for files that the caller has read.
  void take(std::vector<std::string> arrays, CheckpointSource source);
  /// Whether the checkpoint contains the unit. It contains all units except frozen ones, whose
  /// values come from the model's source.
  [[nodiscard]] bool has_unit(std::size_t unit) const;
  /// Makes the elements of a unit that this rank needs available in source(), until the next call.
  Task<> fetch(std::size_t unit);
  [[nodiscard]] StateSource source() const { return source_->source(); }

 private:
  Task<std::string> verify();
  Task<std::string> name_sealed(const Candidate* candidate);
  [[nodiscard]] const HeldCheckpoint* any() const;

  Checkpointer& saves_;
  Rank& rank_;
  std::unique_ptr<CheckpointProtocol> protocol_;  // of the folder
  FoundCandidates found_;
  std::vector<HeldCheckpoint> held_;  // [disk]
  std::vector<HeldRuns> runs_;        // [disk]
  std::string path_;
  std::vector<std::string> arrays_;
  std::optional<CheckpointSource> source_;
};

}  // namespace tandem
