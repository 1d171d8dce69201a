// engine/checkpoint/checkpointer.hpp — a rank's checkpoints: saved while training goes on, in step
// with the other ranks, and loaded on any number of them.
//
// A save passes these phases on every rank; a rank begins the next one when all have ended theirs,
// which they tell each other in the exchange that each step makes anyway (phase(), advance()), so a
// save costs no collective of its own while training goes on:
//   writing (pieces, fsync) -> written | hashing -> hashed | sealing -> sealed | naming -> named |
//   removing older ones -> done
// On one disk what follows hashed is one phase: no disk waits for another one.
// begin() is where they meet first: the first rank of each disk has made the files, every rank has
// opened them and holds its units. finish() goes through what is left, and waits. From hashed on
// the first ranks of the disks work, the others are ready at once.
// Where hosts have disks of their own (disks.hpp), each disk has its ranks' slices, and no disk's
// folder takes its name before all are sealed, nor is an older one removed before all have their
// names: so whenever a run ends, its disks have one step in common.
// Older checkpoints stay while the values of this one are not finite on any disk.
// A failure on any rank is a failed save: what was written is removed, the outcome says why, and
// neither the run nor an older checkpoint has changed. But what all disks have sealed stays, since
// one of them may have its name already.
// Thread rule: the loop's thread. All ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "actors/checkpoint/checkpoint_writer.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"
#include "engine/checkpoint/disks.hpp"
#include "engine/rank/rank.hpp"
#include "engine/types/checkpoint.hpp"
#include "runtime/event.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {

class Checkpointer {
 public:
  /// Gives each rank all ranks' bytes, in rank order: an exchange of equally many bytes.
  using Exchange = std::function<Task<std::vector<std::byte>>(std::vector<std::byte> mine)>;

  struct Options {
    FileIo::Backend io_backend = FileIo::Backend::kAuto;
    std::size_t staging_bytes = 0;
    std::vector<std::string> hosts;  // Communicator::hosts()
  };

  enum class Phase : std::uint8_t {
    kIdle,
    kWriting,
    kWritten,
    kHashing,
    kHashed,
    kSealing,
    kSealed,
    kNaming,
    kNamed,
    kRemoving,
    kDone,
    kFailed,
  };

  /// The arguments outlive it. `update_order`: units by their next update.
  Checkpointer(Rank& rank, std::vector<std::uint32_t> update_order, Exchange exchange,
               Options options);
  /// end() before it.
  ~Checkpointer();

  struct Request {
    std::string parent;  // folder of checkpoints; made where it is missing
    std::string name;    // of this one's folder
    std::int64_t step = 0;
    std::vector<PlannedText> texts;
    int keep = 0;  // that stay, this one among them; 0: all
    // Why older ones stay all the same, as a clause; empty: they may go.
    std::string keeps_all_since = {};
  };

  /// Between two steps. Returns when training may go on: what is saved is the state of now. A save
  /// under way is finished first. False: it has failed already, and take_outcome() says why.
  Task<bool> begin(Request request);
  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  [[nodiscard]] bool is_active() const noexcept { return phase_ != Phase::kIdle; }
  /// Given the phases of all ranks, in rank order: begins the next one where all are ready.
  Task<> advance(std::span<const Phase> of_ranks);
  /// Waits until the save under way has ended.
  Task<> finish();
  /// The outcome of the save that ended last; once.
  [[nodiscard]] std::optional<CheckpointOutcome> take_outcome();
  /// No task of it runs afterwards. A save under way is dropped; its folder stays temporary.
  Task<> end();

  [[nodiscard]] FileIo& files() noexcept { return io_; }
  /// Saves from here on have the masters of frozen units, too. Between saves.
  void save_frozen();
  [[nodiscard]] bool saves_frozen() const noexcept { return with_frozen_; }
  [[nodiscard]] const CheckpointLayout& layout() const noexcept { return layout_; }
  /// As many bytes of every rank, or a text, in rank order.
  Task<std::vector<std::byte>> bytes_of_all_ranks(std::vector<std::byte> mine) {
    return exchange_(std::move(mine));
  }
  Task<std::vector<std::string>> texts_of_all_ranks(std::string mine);
  /// The disks, with the ranks that see each.
  Task<Disks> disks_of(std::string folder);

 private:
  /// Rank 0's words to the others at the begin: which save it is.
  struct Start {
    std::uint64_t made = 1;  // the files are there, as far as this rank makes them
    std::uint64_t high = 0;  // grows with time: of two saves of a step the later one counts
    std::uint64_t low = 0;   // random
  };

  static Task<> write(Checkpointer* self);
  static Task<> hash(Checkpointer* self);
  /// The first rank of each disk goes on with the next phase when all ranks have come to `ended`.
  void go_on(Phase ended, std::vector<ManifestFile> all);
  static Task<> work(Checkpointer* self, Phase next, std::vector<ManifestFile> all);
  Task<> do_phase(Phase phase, std::vector<ManifestFile> all);
  Task<> remove_older_ones();
  Task<> look_at_disks();
  static Start new_start();
  void make_save(Start start);
  /// Also looks whether those of all disks are finite.
  Task<std::vector<ManifestFile>> entries_of_own_disk();
  Task<> close(std::string error);
  void rest(Phase phase);
  void fail(std::exception_ptr error);

  Rank& rank_;
  Exchange exchange_;
  FileIo io_;
  std::vector<std::string> hosts_;
  void make_layout();

  CheckpointLayout layout_;
  bool with_frozen_ = false;
  CheckpointWriter writer_;
  std::string parent_;                      // that disks_ is of
  Disks disks_;                             // of the folder of checkpoints
  std::vector<std::uint32_t> of_own_disk_;  // ranks
  bool is_sealed_ = false;                  // by all disks
  Request request_;
  std::unique_ptr<CheckpointSave> save_;
  Phase phase_ = Phase::kIdle;
  Event rests_;  // set while no task of this rank works on the save
  std::string error_;
  std::string warning_;
  std::vector<ManifestFile> entries_;  // of the files that this rank hashed
  std::optional<CheckpointOutcome> outcome_;
  TimePoint begun_;
  std::size_t staged_bytes_ = 0;
};

}  // namespace tandem
