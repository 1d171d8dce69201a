// models/convert/tandem_checkpoint.hpp — our own checkpoints in the form of foreign ones, and back:
// what ./tandem convert reads and writes.
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
/// foreign checkpoint does not have (seed, data, batch) are not known in it. Nothing is left of one
/// that could not be written. A line for each thing that was left out. Blocks; no loop runs here.
std::vector<std::string> write_tandem(const ImportedCheckpoint& checkpoint,
                                      const std::filesystem::path& folder,
                                      std::vector<PlannedText> texts = {});

}  // namespace tandem
