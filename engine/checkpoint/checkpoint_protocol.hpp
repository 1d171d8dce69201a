// engine/checkpoint/checkpoint_protocol.hpp — how the ranks save a checkpoint and find one again:
// the order of the steps, for ranks that share a disk and for hosts with disks of their own.
//
// A protocol has a save in one function, from its plan to the removal of older checkpoints
// (shared_disk.cpp, several_disks.cpp); write_files() is the part that they share, and RankSave has
// the steps that they put in order.
// Invariant: a vote stands between two steps where the second one on a rank needs the first one on
// other ranks.
// Thread rule: the loop's thread. All ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "actors/checkpoint/checkpoint_writer.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"
#include "engine/checkpoint/checkpoint_search.hpp"
#include "engine/checkpoint/checkpoint_source.hpp"
#include "engine/checkpoint/disks.hpp"
#include "engine/checkpoint/save_votes.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// Exchanges among all ranks. Each is a collective.
struct CheckpointExchange {
  /// Exchanges equally sized byte buffers; returns all of them in rank order.
  std::function<Task<std::vector<std::byte>>(std::vector<std::byte> mine)> bytes;
  std::uint32_t rank = 0;
  std::size_t world = 1;

  /// Exchanges texts of any length.
  [[nodiscard]] Task<std::vector<std::string>> texts(std::string mine) const;
};

struct SaveRequest {
  std::string parent;  // folder of checkpoints; made where it is missing
  std::string name;    // of this one's folder
  std::int64_t step = 0;
  std::vector<PlannedText> texts;
  int keep = 0;  // that stay, this one among them; 0: all
  // The reason for which no older one is removed, as a clause; empty: `keep` decides.
  std::string keeps_all_since = {};
};

/// One save of one rank: its steps, in no order, and its votes.
class RankSave {
 public:
  struct Parts {
    FileIo* io = nullptr;  // these four outlive it
    CpuPool* pool = nullptr;
    CheckpointWriter* writer = nullptr;
    const CheckpointLayout* layout = nullptr;
    std::vector<std::uint32_t> sharers;  // the ranks that share this rank's disk
    std::uint32_t rank = 0;
    std::function<void(const std::string& folder)> make_folder;
    std::string own_id;  // 32 hex digits, another one for each save and rank, ascending with time
  };
  RankSave(Parts parts, SaveRequest request);

  [[nodiscard]] const std::string& own_id() const noexcept { return parts_.own_id; }
  /// Plans the files of the save that rank 0 identifies. `slices`: the disk's part, if there are
  /// several disks.
  void plan(const std::vector<std::string>& ids, std::optional<ManifestSlices> slices);
  /// Makes the folder and every file in full size, so that a full disk shows here.
  Task<> create();
  /// Opens the files, and freezes this rank's units in the optimizer.
  Task<> open_and_hold();
  /// Writes this rank's bytes unit by unit, and syncs them. No unit is frozen afterwards.
  Task<> write();
  /// Hashes this rank's share of the files; returns their entries of the manifest.
  Task<std::string> hash();
  /// Keeps the entries of this disk's files. Notes whether a value on any disk is not finite.
  void take_entries(const std::vector<std::string>& of_ranks);
  /// Makes everything durable under the temporary name, the manifest last.
  Task<> seal();
  /// Gives the folder its final name, durably.
  Task<> take_name();
  /// Removes older checkpoints, unless the request or a value that is not finite forbids it. A
  /// failure is a warning.
  Task<> remove_older();

  /// From now on the files stay even if the save fails: another disk may have named its own.
  void must_stay() noexcept { must_stay_ = true; }
  /// After a failure: removes what the first rank of the disk has made, as far as possible.
  Task<> discard();

  [[nodiscard]] const SaveRequest& request() const noexcept { return request_; }
  [[nodiscard]] const CheckpointLayout& layout() const noexcept { return *parts_.layout; }
  [[nodiscard]] bool has_files() const noexcept { return files_ != nullptr; }
  [[nodiscard]] std::size_t staged_bytes() const noexcept { return staged_bytes_; }
  [[nodiscard]] const std::string& warning() const noexcept { return warning_; }

  SaveVotes votes;
  Event held;  // this rank's units are frozen, or the save has ended

 private:
  Parts parts_;
  SaveRequest request_;
  std::unique_ptr<CheckpointSave> files_;
  std::vector<ManifestFile> entries_;  // of this disk's files
  std::size_t staged_bytes_ = 0;
  std::string warning_;
  bool must_stay_ = false;
};

/// An opened checkpoint, from which ranks send each other elements. All of it outlives the calls.
struct OpenedCheckpoint {
  const RankLayout* layout = nullptr;
  const std::vector<std::string>* arrays = nullptr;  // that are read, by name
  const std::vector<HeldRuns>* runs = nullptr;       // [disk]
  CheckpointSource* source = nullptr;                // of this rank
};

class CheckpointProtocol {
 public:
  /// Chooses by the number of disks.
  static std::unique_ptr<CheckpointProtocol> of(Disks disks, CheckpointExchange ranks);
  virtual ~CheckpointProtocol() = default;

  // ---- saving

  /// Returns what lies on this rank's disk, and what this rank writes.
  [[nodiscard]] virtual CheckpointLayout layout(const RankLayout& layout,
                                                bool with_frozen) const = 0;
  /// All of a save. Between its votes, training goes on.
  virtual Task<> save(RankSave* save) = 0;

  // ---- loading

  /// Finds the candidates that a user means by `folder`; with `is_one` only `folder` itself.
  virtual Task<FoundCandidates> find(FileIo* io, std::string folder, bool is_one) = 0;
  /// Returns the texts of the first rank of each disk, by disk.
  virtual Task<std::vector<std::string>> of_disks(std::string mine) = 0;
  /// Lends the source the elements of a unit that this rank needs and its disk lacks.
  virtual Task<> gather(OpenedCheckpoint opened, std::size_t unit) = 0;

  /// Returns what each disk has of the candidate. If a manifest cannot be read, `fault` gets the
  /// error's text.
  Task<std::vector<HeldCheckpoint>> read_manifests(FileIo* io, Candidate candidate,
                                                   std::string* fault);
  /// Returns the first text that is not empty, in rank order, with the rank's host.
  Task<std::string> first_word(std::string mine) const;

  [[nodiscard]] const Disks& disks() const noexcept { return disks_; }
  [[nodiscard]] std::uint32_t own_disk() const { return disks_.of_rank[ranks_.rank]; }
  [[nodiscard]] bool is_first() const { return disks_.is_first_of_its_disk(ranks_.rank); }

 protected:
  CheckpointProtocol(Disks disks, CheckpointExchange ranks)
      : disks_(std::move(disks)), ranks_(std::move(ranks)) {}

  /// Makes the planned files, writes and hashes them; no file has its final name yet. Training goes
  /// on when this rank's units are frozen.
  Task<> write_files(RankSave* save);

  const Disks disks_;
  const CheckpointExchange ranks_;
};

/// The two of them; CheckpointProtocol::of() chooses.
std::unique_ptr<CheckpointProtocol> shared_disk_protocol(Disks disks, CheckpointExchange ranks);
std::unique_ptr<CheckpointProtocol> several_disks_protocol(Disks disks, CheckpointExchange ranks);

}  // namespace tandem
