// models/hub/hub_paths.hpp — resolves a name on a command line: a path, or a hub id whose snapshot
// lies in the local Hugging Face cache, maybe with a revision ("org/name@v1.0": a branch, a tag, a
// pull request's ref or the beginning of a commit's hash; without one the main branch).
//
// A name that looks like a path is one. A hub id ("org/name", "name") is a name for which no folder
// stands here. A path that is not there is answered with the nearest name that is.
#pragma once

#include <filesystem>
#include <string>

namespace tandem {

/// The model's folder: `name` as a folder, `name`/model where that is what a run left, or the
/// snapshot of the hub id. Throws user_error when it is none of them.
std::filesystem::path resolve_model_folder(const std::string& name);

/// The data's file: `name`, or the one .json or .jsonl file to train on of a folder or of the hub
/// id's snapshot (models/hub/training_files.hpp). Throws user_error.
std::filesystem::path resolve_dataset_file(const std::string& name);

/// "org/name is <path>", which has the revision.
std::string resolved_text(const std::string& name, const std::filesystem::path& path);

}  // namespace tandem
