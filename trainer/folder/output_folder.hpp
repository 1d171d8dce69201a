// trainer/folder/output_folder.hpp — a run's folder: whose it is, what lies in it, and
// what an earlier run left there.
//
// Invariant: a run follows no link within its folder but one in the place of checkpoints/, whose
// lock lies where the link leads to; it replaces nothing that is not a file or a folder of a run;
// and what an earlier run saved is moved to earlier-N/, never removed.
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

/// As far as they are there: the output folder and its checkpoints, within which no link is
/// followed while the objects live. Before anything of them is read.
[[nodiscard]] std::vector<OwnFolder> own_folders(const std::string& output_dir);

/// A run's folders, for as long as it lives: their locks, and that no link within them is followed.
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
  std::string made_;  // the folder of checkpoints, which goes again while it is empty
};

/// Where a launcher has started this run again and it has saved checkpoints, it goes on from them
/// as with --resume auto, unless the flags say otherwise. Before the flags are looked at. A
/// collective.
void go_on_after_restart(RunFlags& flags, Communicator& ranks);

/// Makes output_dir and takes its lock and that of its checkpoints, and removes what a killed run
/// left there, on the first rank of each disk; the others have no locks. `saved`: folders that the
/// run will replace in it, such as "model". Throws user_error where another run has a folder,
/// naming its process; where something that is no run's has a name that the run needs; and on all
/// ranks where checkpoints of a run that has not ended lie there and neither --resume nor
/// --overwrite_output_dir says what becomes of them. A collective.
[[nodiscard]] TakenFolders take_output_dir(const RunFlags& flags, Communicator& ranks,
                                           const Disks& disks,
                                           const std::vector<std::string>& saved);

/// Moves what an earlier run left in `output_dir` into earlier-N and returns that; nullopt where
/// there was none. Saved models stay in place, too, until the next one replaces them.
/// metrics.jsonl, which a writer holds, is copied; `own_events` is the writer's. Not `reports`: the
/// checkpoints alone. Throws std::filesystem::filesystem_error.
std::optional<std::filesystem::path> set_aside_earlier_run(const std::filesystem::path& output_dir,
                                                           bool reports,
                                                           std::string_view own_events);

}  // namespace tandem
