// models/convert/tandem_checkpoint.hpp — converts our own checkpoints into the form of foreign
// ones, and back, for ./tandem convert.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "models/foreign/imported_checkpoint.hpp"

namespace tandem {

/// Opens the checkpoint in `folder` as kind "tandem". Checks sizes, names and shapes;
/// verify_files() checks the bytes. Throws an Error (kUserInput) of one line that names the file
/// and its fault.
ImportedCheckpoint open_tandem_checkpoint(const std::filesystem::path& folder);

/// Writes a checkpoint from which a run can resume into the new folder `folder`, with `texts` in
/// it. Facts that a foreign checkpoint does not have (seed, data, batch) stay unknown. A failure
/// leaves nothing of it behind. Returns a line for each value that was left out. Blocks; call it
/// without a running loop.
std::vector<std::string> write_tandem(const ImportedCheckpoint& checkpoint,
                                      const std::filesystem::path& folder,
                                      std::vector<PlannedText> texts = {});

}  // namespace tandem
