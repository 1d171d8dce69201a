// models/hub/hub_paths.hpp — resolves a name on a command line: a path, or a hub id whose snapshot
// lies in the local Hugging Face cache, maybe with a revision ("org/name@v1.0": a branch, a tag, a
// pull request's ref or the beginning of a commit's hash; without one the main branch).
//
// A name that looks like a path counts as a path. A hub id ("org/name", "name") is a name that no
// folder here has. If a path does not exist, the error gives the nearest name that does.
#pragma once

#include <filesystem>
#include <string>

namespace tandem {

/// Returns the model's folder: the folder `name`, `name`/model if `name` is the folder of a run, or
/// the hub id's snapshot. Throws user_error if none of them exists.
std::filesystem::path resolve_model_folder(const std::string& name);

/// Returns the data's file: the file `name`, or the only .json or .jsonl training file in the
/// folder or in the hub id's snapshot (models/hub/training_files.hpp). Throws user_error if there
/// is no file, or more than one.
std::filesystem::path resolve_dataset_file(const std::string& name);

/// Returns "org/name is <path>"; the path has the revision.
std::string resolved_text(const std::string& name, const std::filesystem::path& path);

}  // namespace tandem
