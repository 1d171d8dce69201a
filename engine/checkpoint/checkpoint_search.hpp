// engine/checkpoint/checkpoint_search.hpp — finds the checkpoints on a disk, puts the finds of all
// disks together, and says which elements of a checkpoint lie on none of them.
//
// Invariant: merged() gives the same candidates in the same order for the same finds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/held_checkpoint.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// One checkpoint, as far as names say.
struct Candidate {
  std::int64_t step = 0;
  bool in_slices = false;
  std::string id;                  // of slices: the save's; else the manifest's hash
  std::string name;                // of its folder, once it has its name
  std::vector<std::string> paths;  // [disk] empty: it is not there

  /// The first path, for messages, by its final name.
  [[nodiscard]] std::string path() const;
};

struct FoundCandidates {
  std::vector<Candidate> candidates;  // the newest first
  std::vector<std::string> broken;    // lines, of this rank's disk
};

/// A checkpoint on one disk.
struct DiskEntry {
  std::int64_t step = 0;
  bool in_slices = false;
  std::string id;
  std::string name;
  std::string path;
};

/// Finds what a user means by `folder` on this disk, newest first; with `is_one` only `folder`
/// itself. `with_ids`: entries have an id, and slices that are sealed and have no name yet count
/// for `folder`, too. Appends a line to `broken` for each folder that is no whole checkpoint.
Task<std::vector<DiskEntry>> entries_on_disk(FileIo* io, std::string folder, bool is_one,
                                             bool with_ids, std::vector<std::string>* broken);
/// The entries as a text that other ranks read.
[[nodiscard]] std::string text_of(const std::vector<DiskEntry>& entries);
[[nodiscard]] std::vector<DiskEntry> entries_of(const std::string& text);
/// Returns the candidates of all disks' entries, the newest first.
[[nodiscard]] std::vector<Candidate> merged(std::vector<std::vector<DiskEntry>> of_disks);

/// Names what is missing in all of `held` together: "the slices of host b are missing"; empty:
/// nothing is.
[[nodiscard]] std::string missing_in(const std::vector<HeldCheckpoint>& held);

}  // namespace tandem
