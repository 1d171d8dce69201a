// engine/checkpoint/checkpoint_search.hpp — finds the checkpoints on the ranks' disks, and which
// elements of each lie on which disk.
//
// Invariant: all ranks get the same result, in the same order.
// Thread rule: the loop's thread; all ranks make the same calls in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/disks.hpp"
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

/// Exchanges texts among all ranks.
struct RanksAtDisks {
  const Disks* disks;
  std::uint32_t rank;
  TextExchange exchange;

  [[nodiscard]] std::uint32_t own_disk() const { return disks->of_rank[rank]; }
  /// Returns the texts of the first rank of each disk, by disk; without an exchange if all ranks
  /// share one disk.
  [[nodiscard]] Task<std::vector<std::string>> of_first_ranks(std::string mine) const;
  /// Returns the first text that is not empty, in rank order, with the rank's host.
  [[nodiscard]] Task<std::string> first_word(std::string mine) const;
};

/// Finds the candidates that a user means by `folder`; with `is_one` only `folder` itself.
Task<FoundCandidates> find_candidates(const RanksAtDisks* ranks, FileIo* io, std::string folder,
                                      bool is_one);

/// Returns what each disk has of the candidate. If a manifest cannot be read, `fault` gets the
/// error's text.
Task<std::vector<HeldCheckpoint>> held_by_disks(const RanksAtDisks* ranks, FileIo* io,
                                                Candidate candidate, std::string* fault);

/// Names what is missing in all of `held` together: "the slices of host b are missing"; empty:
/// nothing is.
[[nodiscard]] std::string missing_in(const std::vector<HeldCheckpoint>& held);

}  // namespace tandem
