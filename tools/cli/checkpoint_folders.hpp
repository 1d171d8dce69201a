// tools/cli/checkpoint_folders.hpp — the checkpoints that a folder on the command line names, and
// whether their bytes are those that were saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/checkpoint_folder.hpp"

namespace tandem {

/// `folder` is a checkpoint, a folder of checkpoints, or that of a run. Throws user_error where it
/// is none of these.
NamedCheckpoints checkpoints_in(const std::string& folder);

struct Verified {
  std::size_t files = 0;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> faults;  // one line each; none: it is as it was saved
};

/// Hashes every byte of a checkpoint, or of a folder of slices, with all CPUs of the machine.
Verified verify_checkpoint(const std::string& folder);

/// Absolute and without a slash at its end, where a result may appear. Throws user_error unless it
/// is missing or empty.
[[nodiscard]] std::filesystem::path new_folder(const std::string& folder, std::string_view where);

}  // namespace tandem
