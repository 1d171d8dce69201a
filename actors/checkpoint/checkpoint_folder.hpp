// actors/checkpoint/checkpoint_folder.hpp — the checkpoints in a folder: which are whole, whether
// their bytes are still those that were written, and which may go.
//
// A checkpoint is whole when its folder has its final name, its manifest parses, and every file of
// the manifest is there in its size: CheckpointSave gives the name last. There is no file that says
// which one is the latest.
// One whose weights or moments are not finite counts as damaged: its manifest says so, and hashing
// its files looks again.
// A folder of slices is one disk's part of a checkpoint, likewise with slices.json. Under a
// temporary name it counts where it is whole, since it is sealed on all disks before it takes its
// name on any; under the name that a removal gives it, it never counts.
// Thread rule: the loop's thread; FileIo and CpuPool outlive the task.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/slices.hpp"
#include "actors/storage/manifest.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// "step-00000020"
std::string checkpoint_name(std::int64_t step);
/// Whether a save or a removal that was killed left the folder called `name`, for certain; another
/// name that is alike is a user's.
[[nodiscard]] bool is_killed_save(std::string_view name);
/// The step of exactly such a name.
std::optional<std::int64_t> step_of_checkpoint(std::string_view name);

/// The name of a save of that folder until it is whole; `nonce` as nonce_text() makes it.
std::string temporary_checkpoint(const std::string& folder, const std::string& nonce);
struct FoundCheckpoint {
  std::int64_t step = 0;
  std::string path;
};

/// A folder of slices.
struct FoundSlices {
  std::int64_t step = 0;
  std::string path;
  std::string name;  // of the checkpoint: that of the folder once it has its name
  std::string save;
  std::uint32_t disk = 0;  // whose slices these are
  std::size_t disks = 0;   // of the save

  [[nodiscard]] bool is_named() const { return path.ends_with("/" + name); }
};

/// The whole ones whose values are finite, newest first. Those that have a checkpoint's name and
/// are not whole come into `broken` (may be null), one line each: "path: why". FileError if
/// `parent` cannot be listed.
Task<std::vector<FoundCheckpoint>> find_checkpoints(FileIo* io, std::string parent,
                                                    std::vector<std::string>* broken);

/// A folder whose weights or moments hold a NaN or an infinity.
struct NotFinite {
  std::string path;
  std::string tensor;  // the first such, with its file
};

struct NamedCheckpoints {
  std::vector<std::string> whole;   // folders, newest first; their values are finite
  std::vector<FoundSlices> slices;  // newest first, by step and save; also those without names
  std::vector<std::string> broken;  // "path: why", of those that are not whole or not finite
  std::vector<NotFinite> not_finite;
};

/// The checkpoints that a user means by `folder`: itself, whatever its name, or those in it, or
/// those of a run, in `folder`/checkpoints. None where the folder is not there.
Task<NamedCheckpoints> named_checkpoints(FileIo* io, std::string folder);
/// The same where no loop runs; blocks.
NamedCheckpoints named_checkpoints(const std::string& folder);

struct FoundFolder {
  std::int64_t step = 0;  // -1: a whole one under a name of its own
  std::string path;
  bool in_slices = false;
};

/// The whole ones and the slices in one order; of a step the whole one first.
std::vector<FoundFolder> newest_first(const NamedCheckpoints& named);

/// Error (user input) if it does not parse; FileError if it cannot be read.
Task<Manifest> read_manifest(FileIo* io, std::string folder);
Task<Slices> read_slices(FileIo* io, std::string folder);
/// A small file's text. FileError if it cannot be read, Error if it is larger than a manifest.
Task<std::string> read_text(FileIo* io, std::string path);

/// Hashes the files i with i % parts == part. One line for each fault, with the file and, where
/// only some of its tensors differ, each of those ("its header": the bytes before them); also for
/// values that are not finite. Nothing: they are as they were written, and a run can go on.
Task<std::vector<std::string>> verify_files(FileIo* io, std::string folder, Manifest manifest,
                                            std::uint32_t part, std::uint32_t parts,
                                            CpuPool* pool = nullptr);
/// The same for the files of a manifest, or of slices.
Task<std::vector<std::string>> verify_entries(FileIo* io, std::string folder,
                                              std::vector<ManifestFile> files, std::uint32_t part,
                                              std::uint32_t parts, CpuPool* pool = nullptr);

/// Only behind a save whose values are finite. Keeps `keep` whole ones, or folders of slices (at
/// least one), and removes the others, and what is left of saves, removals and single files that
/// were killed: no save may be under way in `parent`. `newest` is the step that was saved last: it
/// stays, then those of earlier steps, newest first. Later ones are of a run that was left, and go
/// first. A folder loses its name, for certain, before its first file goes. A link in the place of
/// a folder is no checkpoint: it stays, with what it leads to. One that cannot be removed does not
/// keep the others; FileError of the first.
Task<> remove_older(FileIo* io, std::string parent, int keep, std::int64_t newest);

}  // namespace tandem
