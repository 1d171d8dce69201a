// models/foreign/readers.hpp — one reader per kind of foreign checkpoint; open_foreign_checkpoint()
// chooses.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/foreign/checkpoint_builder.hpp"
#include "models/foreign/imported_checkpoint.hpp"

namespace tandem {

/// The files of a tag's folder, by rank.
struct DeepSpeedFiles {
  std::vector<std::filesystem::path> models;  // one below stage 3
  std::vector<std::filesystem::path> optimizers;
};
/// Throws an error if files of some ranks are missing, or if the folder holds files of a kind that
/// is not read.
DeepSpeedFiles find_deepspeed_files(const std::filesystem::path& folder);
bool has_deepspeed_files(const std::filesystem::path& folder);
TorchFiles open_all(const std::vector<std::filesystem::path>& paths);

ImportedCheckpoint read_deepspeed(const std::filesystem::path& folder);
ImportedCheckpoint read_universal(const std::filesystem::path& folder);
/// `path`: a folder with pytorch_model.bin or its index, or one file.
ImportedCheckpoint read_pytorch(const std::filesystem::path& path);

/// Adds parameters and optimizer state of stage 0, whose model file has the optimizer's whole
/// state.
void add_stage_0(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model);

/// Returns Adam's count of steps from the state of a parameter or flat group, or else from its
/// group; nullopt if neither has one.
std::optional<std::int64_t> steps_of(const TorchFile& file, const PickleValue& optimizer);
/// Returns exp_avg or exp_avg_sq (`which` 0 or 1) of parameter `number`; nullptr if the state has
/// none.
const TorchTensor* moment_of(const TorchFile& file, const PickleValue& optimizer,
                             std::size_t number, std::size_t which);

}  // namespace tandem
