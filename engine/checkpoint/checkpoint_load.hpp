// engine/checkpoint/checkpoint_load.hpp — loads a checkpoint on all ranks, also one whose slices
// lie on several disks: each rank reads what its own disk has; ranks with other disks send the
// rest, unit by unit.
//
//   CheckpointLoad load(meeting, rank);
//   co_await load.inspect(folder, false);
//   for each of load.candidates(): if fault = co_await load.open(one); fault.empty():
//     load.take(arrays); for each unit: co_await load.fetch(unit), restore it from load.source()
//
// All ranks know the layout and the content of each disk, so each knows what every rank sends. They
// send in rounds of kRoundBytes per rank; a rank's memory grows by its own slice of one unit.
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
  static constexpr std::size_t kRoundBytes = std::size_t{64} << 10;

  /// Both outlive it.
  CheckpointLoad(Checkpointer& meeting, Rank& rank);

  /// Finds the checkpoints that a user means by `folder`; with `is_one` only `folder` itself.
  /// Throws user_error if there is none.
  Task<> inspect(std::string folder, bool is_one);
  [[nodiscard]] const std::vector<Candidate>& candidates() const { return found_.candidates; }
  /// The folders with a checkpoint's name from which no run can go on, one line each.
  [[nodiscard]] const std::vector<std::string>& broken() const { return found_.broken; }
  /// Verifies the hashes on each disk, and gives a sealed checkpoint its final name. Returns why
  /// the checkpoint cannot be used; empty if it can.
  Task<std::string> open(Candidate candidate);
  /// Returns the path of the opened checkpoint, for messages.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns the step that its manifest names.
  [[nodiscard]] std::int64_t step() const { return any()->step; }
  /// Returns the content of its text file `name`.
  Task<std::string> text(std::string name);
  [[nodiscard]] bool has(std::string_view array) const { return has_array(*any(), array); }

  /// Sets the arrays to read, by name. Throws user_error if the checkpoint is of another model.
  void take(std::vector<std::string> arrays);
  /// Whether the checkpoint contains the unit. It contains all units except frozen ones, whose
  /// values come from the model's source.
  [[nodiscard]] bool has_unit(std::size_t unit) const;
  /// Makes the elements of a unit that this rank needs available in source(), until the next call.
  Task<> fetch(std::size_t unit);
  [[nodiscard]] StateSource source() const { return source_->source(); }

 private:
  /// A run of elements that the ranks of one disk send to ranks with other disks.
  struct Transfer {
    std::uint32_t array = 0;
    std::size_t parameter = 0;  // of the unit
    ElementRun run;
    std::int64_t at = 0;        // its position among the elements that its disk sends
    std::vector<float> values;  // here; empty: this rank does not need it
  };
  /// The parts of a unit that one disk sends, cut among its ranks.
  struct Stream {
    std::vector<Transfer> transfers;
    std::int64_t elements = 0;
    std::vector<std::uint32_t> ranks;

    [[nodiscard]] ElementRun part_of(std::size_t place) const;
  };

  Task<std::string> verify();
  Task<std::string> name_sealed(const Candidate* candidate);
  [[nodiscard]] const HeldCheckpoint* any() const;
  [[nodiscard]] std::vector<Stream> streams_of(std::size_t unit) const;
  void fill(std::size_t unit, const Stream& stream, ElementRun part, float* out) const;
  static void take_part(Stream& stream, ElementRun part, const float* values);

  Checkpointer& meeting_;
  Rank& rank_;
  Disks disks_;
  RanksAtDisks ranks_;
  FoundCandidates found_;
  std::vector<HeldCheckpoint> held_;  // [disk]
  std::vector<HeldRuns> runs_;        // [disk]
  std::string path_;
  std::vector<std::string> arrays_;
  std::optional<CheckpointSource> source_;
};

}  // namespace tandem
