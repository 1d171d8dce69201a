// engine/checkpoint/gather_slices.hpp — one ordinary checkpoint of the slices that hosts with disks
// of their own have saved. Blocks; any thread.
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

/// The newest save whose slices lie in `sources` together (folders of slices, folders of them, or
/// runs'), hashed first, becomes the checkpoint `folder`, which is not there or empty. Throws
/// user_error, naming the hosts whose slices are missing, or the file that is damaged.
Gathered gather_slices(const std::vector<std::string>& sources, const std::string& folder);

}  // namespace tandem
