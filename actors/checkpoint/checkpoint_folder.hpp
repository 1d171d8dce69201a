// actors/checkpoint/checkpoint_folder.hpp — finds the complete checkpoints in a folder, verifies
// their bytes, and removes old ones.
//
// A checkpoint is whole if its folder has its final name, its manifest parses, and every file of
// the manifest exists with its size: CheckpointSave gives the name last. No file names the latest
// checkpoint. One with weights or moments that are not finite counts as damaged: its manifest says
// so, and hashing its files checks again. A folder of slices is one disk's part of a checkpoint,
// with slices.json instead of a manifest. If it is whole it counts even under a temporary name,
// because it is sealed on all disks before it gets its name on any; under the name that a removal
// gives it, it never counts.
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
/// Whether a killed save or removal has certainly left the folder called `name`; similar names
/// belong to the user.
[[nodiscard]] bool is_killed_save(std::string_view name);
/// Returns the step of such a name; nullopt for any other name.
std::optional<std::int64_t> step_of_checkpoint(std::string_view name);

/// Returns the temporary name of a save of that folder; `nonce` as nonce_text() makes it.
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

/// Returns the whole checkpoints with finite values, newest first. Folders with a checkpoint's name
/// that are not whole are appended to `broken` (may be null), one line each: "path: why". FileError
/// if `parent` cannot be listed.
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

/// Finds the checkpoints that a user means by `folder`: the folder itself with any name, or those
/// in it, or those of a run, in `folder`/checkpoints. Returns none if the folder does not exist.
Task<NamedCheckpoints> named_checkpoints(FileIo* io, std::string folder);
/// The same without a loop; blocks.
NamedCheckpoints named_checkpoints(const std::string& folder);

struct FoundFolder {
  std::int64_t step = 0;  // -1: a whole one under a name of its own
  std::string path;
  bool in_slices = false;
};

/// Returns whole checkpoints and slices in one order, newest first; of the same step the whole one
/// first.
std::vector<FoundFolder> newest_first(const NamedCheckpoints& named);

/// Error (user input) if it does not parse; FileError if it cannot be read.
Task<Manifest> read_manifest(FileIo* io, std::string folder);
Task<Slices> read_slices(FileIo* io, std::string folder);
/// A small file's text. FileError if it cannot be read, Error if it is larger than a manifest.
Task<std::string> read_text(FileIo* io, std::string path);

/// Hashes the files i with i % parts == part. Returns a line for each fault: the file and, if only
/// some of its tensors differ, each of those ("its header": the bytes before them); also for values
/// that are not finite. Empty: the files are as they were written, and a run can resume.
Task<std::vector<std::string>> verify_files(FileIo* io, std::string folder, Manifest manifest,
                                            std::uint32_t part, std::uint32_t parts,
                                            CpuPool* pool = nullptr);
/// The same for the files of a manifest, or of slices.
Task<std::vector<std::string>> verify_entries(FileIo* io, std::string folder,
                                              std::vector<ManifestFile> files, std::uint32_t part,
                                              std::uint32_t parts, CpuPool* pool = nullptr);

/// Removes old checkpoints; call it only after a save with finite values, with no save under way in
/// `parent`. Keeps `keep` whole ones or folders of slices (at least one). Removes the others, and
/// the remains of killed saves, removals and writes of single files. `newest` is the step that was
/// saved last: it stays, then those of earlier steps, newest first; those of later steps, which an
/// earlier run left, are removed first. A folder durably loses its name before its first file is
/// removed. A link with a checkpoint's name stays, and so does its target. If one cannot be
/// removed, the others still are; then FileError of the first.
Task<> remove_older(FileIo* io, std::string parent, int keep, std::int64_t newest);

}  // namespace tandem
