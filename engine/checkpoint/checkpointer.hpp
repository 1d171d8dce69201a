// engine/checkpoint/checkpointer.hpp — saves a rank's checkpoints while training goes on, in step
// with the other ranks, and loads them on any number of ranks.
//
// A save passes these phases on every rank. A rank begins the next phase when all ranks have ended
// the last one. They learn that in the exchange that each step makes anyway (phase(), advance()),
// so a save adds no collective while training goes on:
//   writing (pieces, fsync) -> written | hashing -> hashed | sealing -> sealed | naming -> named |
//   removing older ones -> done
// On one disk all that follows `hashed` is one phase, because no disk waits for another one.
// begin() returns on all ranks when the first rank of each disk has made the files and every rank
// has opened them and frozen its units. finish() awaits the phases that are left. From `hashed` on
// only the first rank of each disk has work. If hosts have disks of their own (disks.hpp), each
// disk has its ranks' slices. No disk's folder gets its name before all are sealed, and no older
// one is removed before all have their names: so whenever a run is killed, its disks have one step
// in common. Older checkpoints stay if a value of this one is not finite on some disk. A failure on
// any rank fails the save: the written files are removed, the outcome says why, and neither the run
// nor an older checkpoint changes. A checkpoint that all disks have sealed stays, because one of
// them may have its name already.
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
  /// Exchanges equally sized byte buffers; returns all of them in rank order.
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

  /// The arguments outlive it. `update_order`: units in the order of their next updates.
  Checkpointer(Rank& rank, std::vector<std::uint32_t> update_order, Exchange exchange,
               Options options);
  /// Call end() first.
  ~Checkpointer();

  struct Request {
    std::string parent;  // folder of checkpoints; made where it is missing
    std::string name;    // of this one's folder
    std::int64_t step = 0;
    std::vector<PlannedText> texts;
    int keep = 0;  // that stay, this one among them; 0: all
    // The reason for which no older one is removed, as a clause; empty: `keep` decides.
    std::string keeps_all_since = {};
  };

  /// Starts a save of the present state; call it between two steps. Returns when training may go
  /// on. A save under way is finished first. Returns false if the save has already failed;
  /// take_outcome() says why.
  Task<bool> begin(Request request);
  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  [[nodiscard]] bool is_active() const noexcept { return phase_ != Phase::kIdle; }
  /// Begins the next phase if all ranks have ended this one. `of_ranks`: their phases, in rank
  /// order.
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
  /// Exchanges buffers of one size, or texts; returns all of them in rank order.
  Task<std::vector<std::byte>> bytes_of_all_ranks(std::vector<std::byte> mine) {
    return exchange_(std::move(mine));
  }
  Task<std::vector<std::string>> texts_of_all_ranks(std::string mine);
  /// The disks, with the ranks that see each.
  Task<Disks> disks_of(std::string folder);

 private:
  /// Rank 0 sends this to the others when a save begins: it identifies the save.
  struct Start {
    std::uint64_t made = 1;  // the files are there, as far as this rank makes them
    std::uint64_t high = 0;  // grows with time: of two saves of a step the later one counts
    std::uint64_t low = 0;   // random
  };

  static Task<> write(Checkpointer* self);
  static Task<> hash(Checkpointer* self);
  /// Begins the next phase on the first rank of each disk, when all ranks have ended `ended`.
  void go_on(Phase ended, std::vector<ManifestFile> all);
  static Task<> work(Checkpointer* self, Phase next, std::vector<ManifestFile> all);
  Task<> do_phase(Phase phase, std::vector<ManifestFile> all);
  Task<> remove_older_ones();
  Task<> look_at_disks();
  static Start new_start();
  void make_save(Start start);
  /// Returns the manifest entries of this disk's files; also checks that the values on all disks
  /// are finite. Collective.
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
  std::string parent_;                      // the folder for which disks_ was found
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
