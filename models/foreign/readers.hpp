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
/// Error: files of other ranks are missing, or the folder holds what is not read.
DeepSpeedFiles find_deepspeed_files(const std::filesystem::path& folder);
bool has_deepspeed_files(const std::filesystem::path& folder);
TorchFiles open_all(const std::vector<std::filesystem::path>& paths);

ImportedCheckpoint read_deepspeed(const std::filesystem::path& folder);
ImportedCheckpoint read_universal(const std::filesystem::path& folder);
/// `path`: a folder with pytorch_model.bin or its index, or one file.
ImportedCheckpoint read_pytorch(const std::filesystem::path& path);

/// Parameters and optimizer state where the optimizer's is whole in the model file (stage 0).
void add_stage_0(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& model);

/// Adam's count of steps in the state of one parameter or flat group, or in its group; nothing if
/// neither has one.
std::optional<std::int64_t> steps_of(const TorchFile& file, const PickleValue& optimizer);
/// exp_avg or exp_avg_sq of parameter `number`; nullptr if the state has none.
const TorchTensor* moment_of(const TorchFile& file, const PickleValue& optimizer,
                             std::size_t number, std::size_t which);

}  // namespace tandem
