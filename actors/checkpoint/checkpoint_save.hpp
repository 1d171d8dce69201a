// actors/checkpoint/checkpoint_save.hpp — one checkpoint being saved: the part of one rank in it.
//
// A save lies in a temporary folder until everything is on the medium; the rename to its final name
// is what makes it a checkpoint. Order, with the ranks meeting between the steps:
//   rank 0 create() | every rank open(), write()..., sync() | every rank hash() |
//   rank 0 seal() | rank 0 take_name()
// Where hosts have disks of their own, this is one disk's part of it, and its ranks are those of
// that disk; when all disks are sealed, all take the name, and a sealed folder counts
// (checkpoint_folder.hpp), so that all have it or none.
// After any failure, on any rank, the save cannot be committed any more: discard() it. A failed
// fsync is not tried again: the kernel has dropped the pages.
// Invariant: whenever the process or the power ends, the final name either does not exist or holds
// everything; once take_name() has returned it exists after a power cut, too. Nothing that lay in
// the parent folder changes before it. Large files are written past the page cache where the file
// system can: a save would else take the memory and the time of the cores that train for copies
// that are never read. Thread rule: the loop's thread. FileIo and CpuPool outlive it; the bytes
// of a write() live until it returns.
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
  /// Hashing runs on `pool`; between other work of the loop where it is null.
  CheckpointSave(FileIo* io, CheckpointPlan plan, std::uint32_t rank, std::uint32_t world,
                 CpuPool* pool = nullptr);
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// Rank 0: the temporary folder and every file in its full size, with its header. Error before
  /// the first byte if the plan makes no checkpoint or the disk has too little room.
  Task<> create();
  /// After rank 0's create().
  Task<> open();
  /// Writes `bytes` of file number `file` from `data_offset`, behind the header, on. Several may be
  /// under way. In a world of one the hash is made meanwhile, if the writes of the file follow each
  /// other from the data's begin to its end.
  Task<> write(std::size_t file, std::uint64_t data_offset, std::span<const std::byte> bytes);
  /// Whether its disk has that much free.
  Task<bool> has_free(std::uint64_t bytes);
  /// The same for bytes that lie in `from`, from byte `from_offset` on, without a copy where the
  /// file system can (UncachedFile::share()). False: it cannot, and they are to be written.
  Task<bool> share(std::size_t file, std::uint64_t data_offset, const IoFile* from,
                   std::uint64_t from_offset, std::uint64_t bytes);
  /// Where in the file bytes of that offset lie.
  [[nodiscard]] std::uint64_t offset_of(std::size_t file, std::uint64_t data_offset) const {
    return parts_[file]->header.size() + data_offset;
  }
  /// All that this rank wrote is on the medium afterwards, and its files are closed.
  Task<> sync();
  /// After every rank's sync(): the entries of the files i with i % world == rank. Reads back what
  /// was not hashed on the way.
  Task<std::vector<ManifestFile>> hash();
  /// Rank 0, with the entries of every rank, in any order: everything is durable, under the
  /// temporary name.
  Task<> seal(std::vector<ManifestFile> all, std::vector<PlannedText> texts);
  /// Rank 0, after seal(). Replaces a folder of the final name.
  Task<> take_name();
  /// Both.
  Task<> commit(std::vector<ManifestFile> all, std::vector<PlannedText> texts);
  /// Removes the temporary folder as far as that is possible; throws nothing. The files are closed.
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

/// The folder takes its final name, durably; one that has that name goes.
Task<> give_name(FileIo* io, std::string temporary, std::string folder);

}  // namespace tandem
