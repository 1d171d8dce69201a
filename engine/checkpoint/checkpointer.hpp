// engine/checkpoint/checkpointer.hpp — a rank's checkpoints: saved while training goes on, in step
// with the other ranks, and loaded on any number of them.
//
// A save passes these phases on every rank; a rank begins the next one when all have ended theirs,
// which they tell each other in the exchange that each step makes anyway (phase(), advance()), so a
// save costs no collective of its own while training goes on:
//   writing (pieces, fsync) -> written | hashing -> hashed | committing (rank 0) -> done
// begin() is where they meet first: rank 0 has made the files, every rank has opened them and holds
// its units. finish() goes through what is left, and waits.
// A failure on any rank is a failed save: rank 0 removes what was written, the outcome says why,
// and neither the run nor an older checkpoint has changed.
// Thread rule: the loop's thread. All ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_writer.hpp"
#include "actors/storage/checkpoint_save.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"
#include "engine/rank/rank.hpp"
#include "engine/types/checkpoint.hpp"
#include "runtime/event.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {

class Checkpointer {
 public:
  /// What of each rank's comes back in rank order: an exchange of equally many bytes.
  using Exchange = std::function<Task<std::vector<std::byte>>(std::vector<std::byte> mine)>;

  struct Options {
    FileIo::Backend io_backend = FileIo::Backend::kAuto;
    std::size_t staging_bytes = 0;
  };

  enum class Phase : std::uint8_t {
    kIdle,
    kWriting,
    kWritten,
    kHashing,
    kHashed,
    kCommitting,
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
  /// What became of the save that ended last; once.
  [[nodiscard]] std::optional<CheckpointOutcome> take_outcome();
  /// No task of it runs afterwards. A save under way is dropped; its folder stays temporary.
  Task<> end();

  [[nodiscard]] FileIo& files() noexcept { return io_; }
  [[nodiscard]] const CheckpointLayout& layout() const noexcept { return layout_; }

 private:
  static Task<> write(Checkpointer* self);
  static Task<> hash(Checkpointer* self);
  static Task<> commit(Checkpointer* self, std::vector<ManifestFile> all);
  Task<std::vector<ManifestFile>> entries_of_all_ranks();
  Task<> close(std::string error);
  void rest(Phase phase);
  void fail(std::exception_ptr error);

  Rank& rank_;
  Exchange exchange_;
  FileIo io_;
  CheckpointLayout layout_;
  CheckpointWriter writer_;
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
