#include "actors/checkpoint/checkpoint_save.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "actors/storage/hash_file.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"
#include "runtime/when_all.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "checkpoint";

ManifestFile entry_of(const PlannedFile& file, std::uint64_t header_bytes) {
  ManifestFile entry{.name = file.name, .size_bytes = header_bytes, .hash = {}, .tensors = {}};
  for (const TensorPlan& tensor : file.tensors) {
    entry.tensors.push_back({.name = tensor.name,
                             .type = tensor.type,
                             .shape = tensor.shape,
                             .begin_byte = entry.size_bytes,
                             .size_bytes = tensor.size_bytes(),
                             .hash = {}});
    entry.size_bytes += tensor.size_bytes();
  }
  return entry;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Task<> remove_quietly(FileIo* io, std::string folder) {
  try {
    co_await io->remove_tree(std::move(folder));
  } catch (const Error&) {  // the caller has an error of its own to tell
  }
}

/// Only a checkpoint is replaced, be it a damaged one.
Task<> require_checkpoint(FileIo* io, std::string folder) {
  for (const std::string& name : co_await io->list_folder(folder)) {
    if (name == kManifestName || name == kEarlierSlicesName) {
      co_return;
    }
  }
  throw failure(
      ExitCode::kFailure, kWhere,
      "{} is in the way and is no checkpoint; move it away, so that the next save has room",
      folder);
}

}  // namespace

std::uint64_t CheckpointPlan::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const PlannedFile& file : files) {
    bytes += file.size_bytes();
  }
  return bytes;
}

/// One step of the save: after one that was not done to its end nothing can be committed.
class CheckpointSave::Step {
 public:
  explicit Step(CheckpointSave& save) : save_(save) {
    if (save.failed_) {
      throw failure(ExitCode::kFailure, kWhere,
                    "the save of {} has failed before; discard it and save again",
                    save.plan_.folder);
    }
  }
  ~Step() { save_.failed_ |= !done_; }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  void done() noexcept { done_ = true; }

 private:
  CheckpointSave& save_;
  bool done_ = false;
};

CheckpointSave::Part::Part(const PlannedFile& file)
    : header(file.header()), entry(entry_of(file, header.size())), hasher(entry) {}

CheckpointSave::CheckpointSave(FileIo* io, CheckpointPlan plan, std::uint32_t rank,
                               std::uint32_t world, CpuPool* pool)
    : io_(io), plan_(std::move(plan)), rank_(rank), world_(world), pool_(pool) {
  TANDEM_CHECK(rank < world, "a rank of the world");
  for (const PlannedFile& file : plan_.files) {
    parts_.push_back(std::make_unique<Part>(file));
  }
}

std::string CheckpointSave::path_of(std::string_view name) const {
  return fmt::format("{}/{}", plan_.temporary, name);
}

Task<> CheckpointSave::create() {
  TANDEM_CHECK(rank_ == 0, "rank 0 creates");
  Step step(*this);
  std::vector<ManifestFile> entries;
  for (const auto& part : parts_) {
    entries.push_back(part->entry);
  }
  static_cast<void>(text_of(std::move(entries)));
  const OwnFolder own(folder_of(plan_.temporary));
  const std::uint64_t needed = plan_.total_bytes();
  const std::uint64_t free = co_await io_->free_bytes(folder_of(plan_.temporary));
  if (free < needed) {
    throw failure(ExitCode::kFailure, kWhere,
                  "{} needs {} bytes, {} are free on its disk; free some, keep fewer checkpoints, "
                  "or save into another folder",
                  plan_.folder, needed, free);
  }
  co_await io_->make_folder(plan_.temporary);
  made_folder_ = true;
  for (const auto& part : parts_) {
    co_await create_file(part.get());
  }
  step.done();
}

Task<> CheckpointSave::create_file(Part* part) {
  IoFile file = co_await io_->open(path_of(part->entry.name), OpenMode::kNew);
  co_await io_->reserve(file, part->entry.size_bytes);
  co_await io_->write(file, 0, bytes_of_text(part->header));
  co_await io_->close(std::move(file));
  part->written = true;
}

Task<> CheckpointSave::open() {
  Step step(*this);
  const OwnFolder own(folder_of(plan_.temporary));
  for (const auto& part : parts_) {
    co_await part->file.open(io_, path_of(part->entry.name), part->entry.size_bytes);
    part->in_order = world_ == 1;
    if (part->in_order) {
      part->hasher.add(bytes_of_text(part->header));
    }
  }
  step.done();
}

CheckpointSave::Part* CheckpointSave::part_of(std::size_t file, std::uint64_t data_offset,
                                              std::uint64_t bytes) const {
  TANDEM_CHECK(file < parts_.size(), "a file of the plan");
  Part* part = parts_[file].get();
  TANDEM_CHECK(data_offset <= part->data_bytes() && bytes <= part->data_bytes() - data_offset,
               "bytes of the file");
  return part;
}

Task<bool> CheckpointSave::has_free(std::uint64_t bytes) {
  Step step(*this);
  const bool has = co_await io_->free_bytes(folder_of(plan_.temporary)) >= bytes;
  step.done();
  co_return has;
}

Task<bool> CheckpointSave::share(std::size_t file, std::uint64_t data_offset, const IoFile* from,
                                 std::uint64_t from_offset, std::uint64_t bytes) {
  Part* part = part_of(file, data_offset, bytes);
  Step step(*this);
  const bool shared =
      co_await part->file.share(offset_of(file, data_offset), from, from_offset, bytes, pool_);
  if (shared) {
    part->written = true;
    part->in_order = false;  // hash() reads it
  }
  step.done();
  co_return shared;
}

Task<> CheckpointSave::write(std::size_t file, std::uint64_t data_offset,
                             std::span<const std::byte> bytes) {
  Part* part = part_of(file, data_offset, bytes.size());
  Step step(*this);
  part->written = true;
  part->in_order = part->in_order && data_offset == part->next;
  const std::uint64_t offset = part->header.size() + data_offset;
  if (part->in_order) {
    part->next += bytes.size();
    co_await when_all(part->file.write(offset, bytes, pool_),
                      hash_pieces(part, data_offset, bytes));
  } else {
    co_await part->file.write(offset, bytes, pool_);
  }
  step.done();
}

Task<> CheckpointSave::hash_pieces(Part* part, std::uint64_t begin,
                                   std::span<const std::byte> bytes) {
  while (part->hashed != begin) {  // the writes before it come first
    part->hashed_more.reset();
    co_await part->hashed_more;
  }
  for (std::size_t at = 0; at < bytes.size(); at += kStoragePieceBytes) {
    const std::size_t size = std::min(bytes.size() - at, kStoragePieceBytes);
    co_await add_to_hash(&part->hasher, bytes.subspan(at, size), pool_);
  }
  part->hashed = begin + bytes.size();
  part->hashed_more.set();
}

Task<> CheckpointSave::sync() {
  Step step(*this);
  for (const auto& part : parts_) {
    if (part->written && !planted(Bug::kFilesNotSynced)) {
      co_await part->file.sync();
    }
    co_await part->file.close();
  }
  step.done();
}

Task<std::vector<ManifestFile>> CheckpointSave::hash() {
  Step step(*this);
  const OwnFolder own(folder_of(plan_.temporary));
  std::vector<ManifestFile> hashed;
  for (std::size_t i = rank_; i < parts_.size(); i += world_) {
    Part* part = parts_[i].get();
    if (std::exchange(part->in_order, false) && part->hashed == part->data_bytes()) {
      hashed.push_back(part->hasher.result());
    } else {
      hashed.push_back(
          co_await hash_file(io_, path_of(part->entry.name), part->entry, pool_, PageCache::kPass));
    }
  }
  step.done();
  co_return hashed;
}

/// In the plan's order, not that in which ranks hashed them.
std::vector<ManifestFile> CheckpointSave::in_order_of_plan(std::vector<ManifestFile> files) const {
  TANDEM_CHECK(files.size() == parts_.size(), "an entry for each file of the plan");
  std::vector<ManifestFile> ordered;
  for (const auto& part : parts_) {
    const auto found = std::ranges::find(files, part->entry.name, &ManifestFile::name);
    TANDEM_CHECK(found != files.end() && found->size_bytes == part->entry.size_bytes,
                 "an entry for each file of the plan");
    ordered.push_back(std::move(*found));
  }
  return ordered;
}

// Read back: else no run could load it.
std::string CheckpointSave::text_of(std::vector<ManifestFile> files) const {
  std::string text =
      Manifest{.step = plan_.step, .files = std::move(files), .slices = plan_.slices}.json();
  static_cast<void>(Manifest::parse(text, plan_.folder));
  return text;
}

Task<> CheckpointSave::write_text(std::string path, std::string text) {
  IoFile file = co_await io_->open(std::move(path), OpenMode::kNew);
  co_await io_->write(file, 0, bytes_of_text(text));
  co_await io_->fsync(file);
  co_await io_->close(std::move(file));
}

Task<> CheckpointSave::seal(std::vector<ManifestFile> all, std::vector<PlannedText> texts) {
  TANDEM_CHECK(rank_ == 0, "rank 0 seals");
  Step step(*this);
  const OwnFolder own(folder_of(plan_.temporary));
  std::vector<ManifestFile> files = in_order_of_plan(std::move(all));
  for (const PlannedText& text : texts) {
    FileHasher hasher(
        {.name = text.name, .size_bytes = text.text.size(), .hash = {}, .tensors = {}});
    hasher.add(bytes_of_text(text.text));
    files.push_back(hasher.result());
  }
  std::string last = text_of(std::move(files));
  for (PlannedText& text : texts) {
    co_await write_text(path_of(text.name), std::move(text.text));
  }
  co_await write_text(path_of(kManifestName), std::move(last));
  if (!planted(Bug::kNameBeforeEntries)) {
    co_await io_->fsync_folder(plan_.temporary);
  }
  if (plan_.slices) {  // it counts from now on, under this name
    co_await io_->fsync_folder(folder_of(plan_.folder));
  }
  step.done();
}

Task<> CheckpointSave::take_name() {
  Step step(*this);
  const OwnFolder own(folder_of(plan_.temporary));
  co_await give_name(io_, plan_.temporary, plan_.folder);
  step.done();
}

Task<> CheckpointSave::commit(std::vector<ManifestFile> all, std::vector<PlannedText> texts) {
  co_await seal(std::move(all), std::move(texts));
  co_await take_name();
}

Task<> give_name(FileIo* io, std::string temporary, std::string folder) {
  bool taken = false;
  try {
    co_await io->rename(temporary, folder);
  } catch (const FileError& error) {
    taken = error.error_number() == ENOTEMPTY || error.error_number() == EEXIST;
    if (!taken) {
      throw;
    }
  }
  if (taken) {
    co_await require_checkpoint(io, folder);
    co_await io->exchange(temporary, folder);
  }
  if (!planted(Bug::kCommitNotSynced)) {
    co_await io->fsync_folder(folder_of(folder));
  }
  if (taken) {
    co_await remove_quietly(io, temporary);
  }
}

Task<> CheckpointSave::discard() {
  failed_ = true;
  for (const auto& part : parts_) {
    part->file.abandon();
  }
  if (made_folder_) {  // what else has the name is not ours
    const OwnFolder own(folder_of(plan_.temporary));
    co_await remove_quietly(io_, plan_.temporary);
  }
}

}  // namespace tandem
