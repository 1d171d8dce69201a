// actors/checkpoint/checkpoint_save.hpp — one rank's part in saving a checkpoint.
//
// A save lies in a temporary folder until everything is synced; the rename to its final name makes
// it a checkpoint. Order of calls, with all ranks waiting for each other between them:
//   rank 0 create() | every rank open(), write()..., sync() | every rank hash() |
//   rank 0 seal() | rank 0 take_name()
// If hosts have disks of their own, this class saves the slices of one disk, and its ranks are the
// ranks of that disk. The folders take their names when those on all disks are sealed. A sealed
// folder counts as saved (checkpoint_folder.hpp), so either all disks have the save or none has it.
// After a failure on any rank the save cannot be committed: call discard(). A failed fsync is not
// retried, because the kernel has dropped the pages.
// Invariant: whenever the process is killed or the power fails, the final name either does not
// exist or has everything; once take_name() has returned, it survives a power cut. Nothing else in
// the parent folder changes before that. Writes of large files bypass the page cache if the file
// system can do that. Otherwise a save would take memory, and time of the cores that train, for
// copies that are never read.
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

/// The plan of a save; it is the same on every rank.
struct CheckpointPlan {
  std::int64_t step = 0;
  std::string folder;     // final: parent/step-00000020; the parent exists
  std::string temporary;  // parent/step-00000020.tmp-<nonce>
  std::vector<PlannedFile> files;
  std::optional<ManifestSlices>
      slices;  // with several disks: the part of the checkpoint on this one

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
  /// Opens the files for writing. Call it after rank 0's create().
  Task<> open();
  /// Writes `bytes` into file number `file` at `data_offset` after the header. Several calls may be
  /// under way. With one rank, a file's hash is computed while it is written, provided that it is
  /// written in order from its first to its last byte.
  Task<> write(std::size_t file, std::uint64_t data_offset, std::span<const std::byte> bytes);
  /// Returns whether the disk of the checkpoint has `bytes` free.
  Task<bool> has_free(std::uint64_t bytes);
  /// As write(), but shares the bytes of `from` at `from_offset` without a copy
  /// (UncachedFile::share()). Returns false if the file system cannot share them; then call
  /// write().
  Task<bool> share(std::size_t file, std::uint64_t data_offset, const IoFile* from,
                   std::uint64_t from_offset, std::uint64_t bytes);
  /// Returns the position in the file that belongs to `data_offset` in its data.
  [[nodiscard]] std::uint64_t offset_of(std::size_t file, std::uint64_t data_offset) const {
    return parts_[file]->header.size() + data_offset;
  }
  /// Syncs all that this rank wrote, and closes its files.
  Task<> sync();
  /// Returns the manifest's entries of the files i with i % world == rank. Call it after every
  /// rank's sync(). It reads the files that were not hashed while they were written.
  Task<std::vector<ManifestFile>> hash();
  /// Makes everything durable under the temporary name. Rank 0 calls it, with the entries of all
  /// ranks in any order.
  Task<> seal(std::vector<ManifestFile> all, std::vector<PlannedText> texts);
  /// Gives the folder its final name, and replaces an older folder of that name. Rank 0 calls it
  /// after seal().
  Task<> take_name();
  /// Calls seal(), then take_name().
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
    // For hashing during the writes; positions count from the beginning of the data.
    bool in_order = false;
    std::uint64_t next = 0;    // position at which the next write in order begins
    std::uint64_t hashed = 0;  // the bytes before this position are hashed
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
  /// The text of manifest.json, which a run can load.
  [[nodiscard]] std::string text_of(std::vector<ManifestFile> files) const;

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
