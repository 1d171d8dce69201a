// models/hub/training_files.hpp — chooses the files of a data folder for training.
//
// Invariant: tools/prepare/hub.py chooses the same ones, so that the program and `prepare` always
// use the same files.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace tandem {

/// The split that the words of a path name: "train", "test", "validation"; empty: none. The last
/// word counts, so that a file's name comes before its folders'.
std::string_view split_of(std::string_view path);

/// Files of known kinds below the folder, by their names: those of the split "train"; where there
/// are none, those of no split. Descriptions (dataset_infos.json and the like) are no data. Throws
/// user_error for a data set whose README.md lists configs: `prepare` chooses among them.
std::vector<std::filesystem::path> training_files(const std::filesystem::path& folder);

}  // namespace tandem
