// engine/checkpoint/gather_slices.hpp — makes one ordinary checkpoint of the slices that hosts with
// disks of their own have saved. Blocks; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

struct Gathered {
  std::int64_t step = 0;
  std::size_t folders = 0;
  std::vector<std::string> notes;  // a line for each newer save that is not whole
};

/// Writes the newest save that has all its slices in `sources` as the checkpoint `folder`, after
/// checking the hashes. A source is a folder of slices, a folder of such folders, or a run's
/// folder. `folder` must be missing or empty. Throws user_error, naming the hosts whose slices are
/// missing, or the file that is damaged.
Gathered gather_slices(const std::vector<std::string>& sources, const std::string& folder);

}  // namespace tandem
