// engine/checkpoint/checkpointer.hpp — saves a rank's checkpoints while training goes on, in step
// with the other ranks.
//
// The disks on which the folder of checkpoints lies choose the protocol of a save
// (checkpoint_protocol.hpp), once for each folder. The save is a task of its own that waits at
// votes (save_votes.hpp); phase() and advance() carry these through the exchange of each step.
// begin() returns on all ranks when the files are made and every rank has opened them and frozen
// its units; finish() makes the exchanges that are left. From the vote kHashed on only the first
// rank of each disk has work. A failure on any rank fails the save: the written files are removed,
// the outcome says why, and neither the run nor an older checkpoint changes. Older checkpoints
// stay, too, if a value of this one is not finite on some disk. Thread rule: the loop's thread. All
// ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_writer.hpp"
#include "engine/checkpoint/checkpoint_protocol.hpp"
#include "engine/rank/rank.hpp"
#include "engine/types/checkpoint.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {

class Checkpointer {
 public:
  using Phase = SavePhase;
  using Request = SaveRequest;

  /// The answers of the machine to a save, beside its files. The simulator gives others.
  struct Machine {
    /// Finds out which ranks see the same disk at `folder`. A collective.
    std::function<Task<Disks>(TextExchange exchange, std::string folder)> find_disks;
    /// Makes the folder if it is missing. Error if it cannot be written to.
    std::function<void(const std::string& folder)> make_folder;
    /// Returns 32 hex digits: another text for each call, which ascends with time.
    std::function<std::string()> new_id;

    /// `hosts`: Communicator::hosts().
    static Machine real(std::vector<std::string> hosts, std::size_t rank, std::size_t world);
  };

  struct Options {
    std::size_t staging_bytes = 0;
    std::size_t piece_bytes = CheckpointWriter::Options().piece_bytes;
    std::vector<std::string> hosts;  // Communicator::hosts()
    Machine machine;
  };

  /// `rank` and `io` outlive it. `update_order`: units in the order of their next updates.
  Checkpointer(Rank& rank, FileIo& io, std::vector<std::uint32_t> update_order,
               CheckpointExchange exchange, Options options);
  /// Call end() first.
  ~Checkpointer();

  /// Starts a save of the present state; call it between two steps. Returns when training may go
  /// on. A save under way is finished first. Returns false if the save has already failed;
  /// take_outcome() says why.
  Task<bool> begin(Request request);
  [[nodiscard]] Phase phase() const noexcept { return save_ ? save_->votes.phase() : Phase::kIdle; }
  [[nodiscard]] bool is_active() const noexcept { return save_ != nullptr; }
  /// Passes the vote at which the saves of all ranks wait, or ends the save. `of_ranks`: the phases
  /// that the ranks have exchanged, in rank order.
  Task<> advance(std::span<const Phase> of_ranks);
  /// Waits until the save under way has ended.
  Task<> finish();
  /// Returns the outcome of the save that ended last, once; nullopt afterwards.
  [[nodiscard]] std::optional<CheckpointOutcome> take_outcome();
  /// Drops a save under way, whose folder keeps its temporary name. No task runs afterwards.
  Task<> end();

  [[nodiscard]] FileIo& files() noexcept { return io_; }
  /// Later saves contain the masters of frozen units, too. Call it between saves.
  void save_frozen();
  [[nodiscard]] bool saves_frozen() const noexcept { return with_frozen_; }
  [[nodiscard]] const CheckpointLayout& layout() const noexcept { return layout_; }
  /// Returns the protocol for `folder`, by the disks on which it lies. A collective.
  Task<std::unique_ptr<CheckpointProtocol>> protocol_of(std::string folder);

 private:
  static Task<> run(Checkpointer* self);
  /// Exchanges the phases and advances.
  Task<> exchange_phases();
  Task<> close(std::string error);
  void make_layout();

  Rank& rank_;
  FileIo& io_;
  const CheckpointExchange exchange_;
  const Options options_;
  CheckpointLayout layout_;
  bool with_frozen_ = false;
  CheckpointWriter writer_;
  std::string parent_;  // the folder that protocol_ is for
  std::unique_ptr<CheckpointProtocol> protocol_;
  std::unique_ptr<RankSave> save_;  // null: none is under way
  std::string error_;               // of this rank's save
  std::optional<CheckpointOutcome> outcome_;
  TimePoint begun_;
};

}  // namespace tandem
