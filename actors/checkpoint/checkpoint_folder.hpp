// actors/checkpoint/checkpoint_folder.hpp — finds the complete checkpoints in a folder, verifies
// their bytes, and removes old ones.
//
// A checkpoint is whole if its folder has its final name, its manifest parses, and every file of
// the manifest exists with the size given there. CheckpointSave gives the name last. No file names
// the latest checkpoint. A checkpoint with weights or moments that are not finite counts as
// damaged: its manifest records them, and verify_files() checks the values again. A folder of
// slices, as its manifest says, is one disk's part of a checkpoint. A complete folder of slices
// counts even under a temporary name, because the slices are sealed on all disks before the folder
// gets its final name on any of them. A folder that a removal has renamed never counts. Earlier
// versions wrote the manifest of slices as slices.json; such folders count alike.
// Thread rule: the loop's thread; FileIo and CpuPool outlive the task.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/manifest.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// "step-00000020"
std::string checkpoint_name(std::int64_t step);
/// Returns whether a folder called `name` was certainly left by a killed save or removal. Folders
/// with merely similar names belong to the user.
[[nodiscard]] bool is_killed_save(std::string_view name);
/// Returns the step of such a name; nullopt for any other name.
std::optional<std::int64_t> step_of_checkpoint(std::string_view name);

/// Returns the temporary name of a save whose final name is `folder`. nonce_text() makes `nonce`.
std::string temporary_checkpoint(const std::string& folder, const std::string& nonce);
struct FoundCheckpoint {
  std::int64_t step = 0;
  std::string path;
};

/// A folder of slices.
struct FoundSlices {
  std::int64_t step = 0;
  std::string path;
  std::string name;  // of the checkpoint; the folder gets it at the end of the save
  std::string save;
  std::uint32_t disk = 0;  // the disk that has these slices
  std::size_t disks = 0;   // number of disks in the save

  [[nodiscard]] bool is_named() const { return path.ends_with("/" + name); }
};

/// Returns the whole checkpoints with finite values, newest first. Appends to `broken` (may be
/// null) one line, "path: why", for each folder that has a checkpoint's name but is not whole or
/// not finite. FileError if `parent` cannot be listed.
Task<std::vector<FoundCheckpoint>> find_checkpoints(FileIo* io, std::string parent,
                                                    std::vector<std::string>* broken);

/// A folder whose weights or moments hold a NaN or an infinity.
struct NotFinite {
  std::string path;
  std::string tensor;  // the first tensor with such a value, and its file
};

struct NamedCheckpoints {
  std::vector<std::string> whole;   // folders, newest first; their values are finite
  std::vector<FoundSlices> slices;  // newest first, by step and save; with or without final name
  std::vector<std::string> broken;  // "path: why" of each folder that is not whole or not finite
  std::vector<NotFinite> not_finite;
};

/// Finds the checkpoints that a user means by `folder`: the folder itself, under any name, if it is
/// a checkpoint; else the checkpoints in `folder`/checkpoints, where a run saves them; else those
/// in `folder`. Returns none if the folder does not exist.
Task<NamedCheckpoints> named_checkpoints(FileIo* io, std::string folder);
/// The same without a loop; blocks.
NamedCheckpoints named_checkpoints(const std::string& folder);
/// Returns `folder` itself, as whole or as slices. If no manifest says which, the folder counts as
/// whole, and its next reader says what is wrong with it.
Task<NamedCheckpoints> checkpoint_in(FileIo* io, std::string folder);
/// Returns the names in the folder; nullopt if there is no folder of that name.
Task<std::optional<std::vector<std::string>>> names_in(FileIo* io, std::string folder);

struct FoundFolder {
  std::int64_t step = 0;  // -1: a whole checkpoint whose folder has another name
  std::string path;
  bool in_slices = false;
};

/// Returns whole checkpoints and slices in one order, newest first. At the same step, whole
/// checkpoints come before slices.
std::vector<FoundFolder> newest_first(const NamedCheckpoints& named);

/// Reads the manifest of `folder`. Error (user input) if it does not parse; FileError if it cannot
/// be read.
Task<Manifest> read_manifest(FileIo* io, std::string folder);
/// Returns its text alone.
Task<std::string> read_manifest_text(FileIo* io, std::string folder);
/// Returns the path of the manifest that `folder` has. Blocks; any thread.
std::string manifest_path(const std::string& folder);
/// Returns a small file's text. FileError if it cannot be read, Error if it is larger than a
/// manifest.
Task<std::string> read_text(FileIo* io, std::string path);

/// Hashes the files i with i % parts == part. Returns one line for each fault: a file that is
/// missing or has another size, each tensor whose hash differs (the first 8 of a file and the
/// number of the others; the file if all its tensors differ, or if only the bytes before them do:
/// "its header"), and values that are not finite. If the result is empty, the files are as they
/// were written, and a run can resume.
Task<std::vector<std::string>> verify_files(FileIo* io, std::string folder, Manifest manifest,
                                            std::uint32_t part, std::uint32_t parts,
                                            CpuPool* pool = nullptr);
/// The same for the files of a manifest, or of slices.
Task<std::vector<std::string>> verify_entries(FileIo* io, std::string folder,
                                              std::vector<ManifestFile> files, std::uint32_t part,
                                              std::uint32_t parts, CpuPool* pool = nullptr);

/// Removes old checkpoints. Call it only after a save with finite values, with no save under way in
/// `parent`. It keeps `keep` whole checkpoints or folders of slices (at least one), and removes the
/// others, those with values that are not finite, and the remains of killed saves, removals and
/// writes of single files. `newest` is the step that was saved last. That checkpoint has the first
/// claim to stay, then those of earlier steps, newest first; checkpoints of later steps, which an
/// earlier run left, are the first to go. A folder durably loses its name before its first file is
/// removed. A link with a checkpoint's name stays, and so does its target. If one folder cannot be
/// removed, the others still are; then the FileError of the first failure is thrown.
Task<> remove_older(FileIo* io, std::string parent, int keep, std::int64_t newest);

}  // namespace tandem
