// actors/checkpoint/checkpoint_save.hpp — one rank's part in saving a checkpoint.
//
// A save lies in a temporary folder until everything is synced; the rename to its final name makes
// it a checkpoint. Order of calls, with all ranks waiting for each other between them:
//   rank 0 create() | every rank open(), write()..., sync() | every rank hash() |
//   rank 0 seal() | rank 0 take_name()
// If hosts have disks of their own, this saves one disk's slices, and its ranks are those of that
// disk. When all disks are sealed, all take the name; a sealed folder counts as saved
// (checkpoint_folder.hpp), so all disks have the save or none. After a failure on any rank the save
// cannot be committed: call discard(). A failed fsync is not retried, because the kernel has
// dropped the pages.
// Invariant: whenever the process is killed or the power fails, the final name either does not
// exist or has everything; once take_name() has returned, it survives a power cut. Nothing else in
// the parent folder changes before that. Writes of large files bypass the page cache if the file
// system can: otherwise a save would take memory, and time of the cores that train, for copies that
// are never read.
// Thread rule: the loop's thread. FileIo and CpuPool outlive it; the bytes of a write() live until
// it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/planned_file.hpp"
#include "actors/checkpoint/slices.hpp"
#include "actors/storage/manifest.hpp"
#include "actors/storage/uncached_file.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// A small file, written by seal().
struct PlannedText {
  std::string name;
  std::string text;
};

/// The same on every rank.
struct CheckpointPlan {
  std::int64_t step = 0;
  std::string folder;     // final: parent/step-00000020; the parent exists
  std::string temporary;  // parent/step-00000020.tmp-<nonce>
  std::vector<PlannedFile> files;
  std::optional<SlicesPlan> slices;  // of several disks' checkpoint: what of it lies on this one

  [[nodiscard]] std::uint64_t total_bytes() const;
};

class CheckpointSave {
 public:
  /// Hashing runs on `pool`; if that is null, on the loop between other work.
  CheckpointSave(FileIo* io, CheckpointPlan plan, std::uint32_t rank, std::uint32_t world,
                 CpuPool* pool = nullptr);
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// Rank 0 makes the temporary folder and every file with its full size and header. Error before
  /// the first byte if the plan is not valid or the disk has too little room.
  Task<> create();
  /// After rank 0's create().
  Task<> open();
  /// Writes `bytes` into file number `file` at `data_offset` after the header. Several calls may be
  /// under way. With one rank the hash is computed on the way, if the file is written in order from
  /// its first to its last byte.
  Task<> write(std::size_t file, std::uint64_t data_offset, std::span<const std::byte> bytes);
  /// Whether its disk has that much free.
  Task<bool> has_free(std::uint64_t bytes);
  /// The same for bytes of `from` at `from_offset`, shared without a copy (UncachedFile::share()).
  /// Returns false if the file system cannot share: then write() them.
  Task<bool> share(std::size_t file, std::uint64_t data_offset, const IoFile* from,
                   std::uint64_t from_offset, std::uint64_t bytes);
  /// Returns the position in the file of that offset in the data.
  [[nodiscard]] std::uint64_t offset_of(std::size_t file, std::uint64_t data_offset) const {
    return parts_[file]->header.size() + data_offset;
  }
  /// Syncs all that this rank wrote, and closes its files.
  Task<> sync();
  /// After every rank's sync(): returns the entries of the files i with i % world == rank. Reads
  /// files that were not hashed on the way.
  Task<std::vector<ManifestFile>> hash();
  /// Rank 0, with the entries of all ranks in any order: makes everything durable, under the
  /// temporary name.
  Task<> seal(std::vector<ManifestFile> all, std::vector<PlannedText> texts);
  /// Rank 0, after seal(). Replaces a folder of the final name.
  Task<> take_name();
  /// Both.
  Task<> commit(std::vector<ManifestFile> all, std::vector<PlannedText> texts);
  /// Closes the files and removes the temporary folder as far as possible; throws nothing.
  Task<> discard();

 private:
  /// One of the planned files.
  struct Part {
    explicit Part(const PlannedFile& file);
    [[nodiscard]] std::uint64_t data_bytes() const noexcept {
      return entry.size_bytes - header.size();
    }
    std::string header;
    ManifestFile entry;  // no hashes yet
    UncachedFile file;
    bool written = false;  // by this rank
    // For hashing on the way; places count from the data's begin.
    bool in_order = false;
    std::uint64_t next = 0;    // where the next write in order begins
    std::uint64_t hashed = 0;  // up to here
    Event hashed_more;
    FileHasher hasher;
  };
  class Step;

  [[nodiscard]] Part* part_of(std::size_t file, std::uint64_t data_offset,
                              std::uint64_t bytes) const;
  [[nodiscard]] std::string path_of(std::string_view name) const;
  Task<> create_file(Part* part);
  Task<> hash_pieces(Part* part, std::uint64_t begin, std::span<const std::byte> bytes);
  Task<> write_text(std::string path, std::string text);
  [[nodiscard]] std::vector<ManifestFile> in_order_of_plan(std::vector<ManifestFile> files) const;
  /// The text of manifest.json or slices.json, which a run can load.
  [[nodiscard]] std::string text_of(std::vector<ManifestFile> files) const;
  [[nodiscard]] std::string_view last_file() const noexcept {
    return plan_.slices ? kSlicesName : kManifestName;
  }

  FileIo* io_;
  CheckpointPlan plan_;
  std::uint32_t rank_;
  std::uint32_t world_;
  CpuPool* pool_;
  std::vector<std::unique_ptr<Part>> parts_;
  bool made_folder_ = false;  // by create()
  bool failed_ = false;
};

/// Gives the folder its final name, durably, and removes an older folder of that name.
Task<> give_name(FileIo* io, std::string temporary, std::string folder);

}  // namespace tandem
