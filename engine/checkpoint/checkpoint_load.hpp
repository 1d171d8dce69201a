// engine/checkpoint/checkpoint_load.hpp — a checkpoint is loaded by all ranks, from wherever its
// parts lie: each rank reads what is on its disk, and what is not there comes to it from ranks
// whose disk has it, unit by unit.
//
//   CheckpointLoad load(meeting, rank);
//   co_await load.look(folder, false);
//   for each of load.candidates(): if fault = co_await load.open(one); fault.empty():
//     load.take(arrays); for each unit: co_await load.fetch(unit), restore it from load.source()
//
// The layout and what each disk says it holds decide what is fetched, so that every rank knows what
// all of them send; it goes in rounds of kRoundBytes of each rank, and a rank's
// memory grows by its own slice of one unit.
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

  /// Looks for what a user means by `folder`; `is_one`: that itself. Throws user_error where there
  /// is nothing.
  Task<> look(std::string folder, bool is_one);
  [[nodiscard]] const std::vector<Candidate>& candidates() const { return found_.candidates; }
  /// The folders with a checkpoint's name from which no run can go on, one line each.
  [[nodiscard]] const std::vector<std::string>& broken() const { return found_.broken; }
  /// Hashes what lies where, and gives a sealed one its name. Why it cannot be used; empty: it can.
  Task<std::string> open(Candidate candidate);
  /// The path, for messages, and a text of the one that was opened.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// As its manifest says.
  [[nodiscard]] std::int64_t step() const { return any()->step; }
  Task<std::string> text(std::string name);
  [[nodiscard]] bool has(std::string_view array) const { return has_array(*any(), array); }

  /// Sets the arrays that are to be read, by their names. Throws user_error where the model is
  /// another one.
  void take(std::vector<std::string> arrays);
  /// Whether the checkpoint has the unit, as it has all but frozen ones whose source has them.
  [[nodiscard]] bool has_unit(std::size_t unit) const;
  /// Brings what this rank needs of a unit, which stays until the next call.
  Task<> fetch(std::size_t unit);
  [[nodiscard]] StateSource source() const { return source_->source(); }

 private:
  /// A run of elements that goes from a disk to the ranks of others.
  struct Transfer {
    std::uint32_t array = 0;
    std::size_t parameter = 0;  // of the unit
    ElementRun run;
    std::int64_t at = 0;        // where it begins in what its disk sends
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
