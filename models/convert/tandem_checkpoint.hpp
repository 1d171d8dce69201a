// models/convert/tandem_checkpoint.hpp — converts our own checkpoints into the form of foreign
// ones, and back, for ./tandem convert.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "models/foreign/imported_checkpoint.hpp"

namespace tandem {

/// Opens the checkpoint in `folder` as kind "tandem". Sizes, names and shapes are checked; the
/// bytes are what verify_files() is for. Error (kUserInput) in one line with the file and what is
/// wrong in it.
ImportedCheckpoint open_tandem_checkpoint(const std::filesystem::path& folder);

/// Writes the new checkpoint `folder`, which a run resumes; `texts` lie in it, too. Facts that a
/// foreign checkpoint does not have (seed, data, batch) stay unknown. After a failure nothing of it
/// is left. Returns a line for each value that was left out. Blocks; call it without a running
/// loop.
std::vector<std::string> write_tandem(const ImportedCheckpoint& checkpoint,
                                      const std::filesystem::path& folder,
                                      std::vector<PlannedText> texts = {});

}  // namespace tandem
