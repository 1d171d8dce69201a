// models/hub/training_files.hpp — chooses the files of a data folder for training.
//
// Invariant: tools/prepare/hub.py chooses the same ones, so that the program and `prepare` always
// use the same files.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace tandem {

/// Returns the split that a word of the path names: "train", "test", "validation"; empty if none
/// does. The last such word counts, so that a file's name decides before its folders' names.
std::string_view split_of(std::string_view path);

/// Returns the files of known kinds below the folder, sorted: the files of the split "train" or, if
/// there are none, the files of no split. Descriptions (dataset_infos.json and the like) are left
/// out. Throws user_error if the data set's README.md lists configs: `prepare` chooses among them.
std::vector<std::filesystem::path> training_files(const std::filesystem::path& folder);

}  // namespace tandem
