// trainer/folder/output_folder.hpp — a run's folder: its lock, its content, and the files of an
// earlier run.
//
// Invariant: within its folder a run follows no link except one in the place of checkpoints/, whose
// lock lies where the link leads to. A run replaces only files and folders of a run. Files that an
// earlier run saved are moved to earlier-N/, never removed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/folder.hpp"
#include "engine/checkpoint/disks.hpp"
#include "engine/distributed/communicator.hpp"
#include "runtime/system/reach.hpp"
#include "trainer/flags/run_flags.hpp"

namespace tandem {

/// "OUTPUT_DIR/checkpoints"
[[nodiscard]] std::string checkpoints_of(const std::string& output_dir);

/// Returns the output folder and its checkpoints, as far as they exist; no link within them is
/// followed while the objects live. Call it before anything in them is read.
[[nodiscard]] std::vector<OwnFolder> own_folders(const std::string& output_dir);

/// Owns the locks of a run's folders; while it lives no link within them is followed.
class TakenFolders {
 public:
  TakenFolders() = default;
  TakenFolders(TakenFolders&& other) noexcept = default;
  TakenFolders& operator=(TakenFolders&&) = delete;
  ~TakenFolders();

 private:
  friend TakenFolders take_output_dir(const RunFlags& flags, Communicator& ranks,
                                      const Disks& disks, const std::vector<std::string>& saved);

  std::vector<OwnFolder> own_;  // on every rank
  std::optional<FolderLock> output_;
  std::optional<FolderLock> checkpoints_;
  std::vector<std::string> made_;  // removed at the end, the last one first, if they are empty
};

/// If a launcher has restarted this run and it has saved checkpoints, makes it resume from them as
/// with --resume auto, unless the flags say otherwise. Call it before the flags are used.
/// Collective.
void go_on_after_restart(RunFlags& flags, Communicator& ranks);

/// On the first rank of each disk: makes output_dir, takes its lock and that of its checkpoints,
/// and removes the remains of a killed run; other ranks have no locks. `saved`: folders in it that
/// the run will replace, such as "model". Throws user_error if another run has a lock, naming its
/// process; if a file that is not a run's has a name that the run needs; and, on all ranks, if
/// checkpoints of an unfinished run lie there and neither --resume nor --overwrite_output_dir is
/// given. Collective.
[[nodiscard]] TakenFolders take_output_dir(const RunFlags& flags, Communicator& ranks,
                                           const Disks& disks,
                                           const std::vector<std::string>& saved);

/// Moves the files of an earlier run in `output_dir` into earlier-N and returns that folder;
/// nullopt if there was none. Saved models also stay until the next one replaces them.
/// metrics.jsonl, which a writer has open, is copied; `own_events` is the writer's. Without
/// `reports` moves only the checkpoints. Throws std::filesystem::filesystem_error.
std::optional<std::filesystem::path> set_aside_earlier_run(const std::filesystem::path& output_dir,
                                                           bool reports,
                                                           std::string_view own_events);

}  // namespace tandem
