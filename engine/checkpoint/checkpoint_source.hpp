// engine/checkpoint/checkpoint_source.hpp — the tensors of a checkpoint, to be loaded by the
// elements that a rank keeps.
//
// Invariant: what it hands out was verified against the manifest's hashes by verify_files(), which
// the ranks share; sizes, names and shapes are checked here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "actors/storage/manifest.hpp"
#include "actors/storage/safetensors.hpp"
#include "engine/rank/rank_layout.hpp"
#include "engine/rank/weight_loader.hpp"

namespace tandem {

class CheckpointSource {
 public:
  /// Opens the files of `arrays` (array_name()); throws user_error where a parameter is missing or
  /// has another shape. Which arrays a parameter has the layout says.
  CheckpointSource(const std::filesystem::path& folder, const Manifest& manifest,
                   const RankLayout& layout, const std::vector<std::string>& arrays);

  /// Elements of an array of a parameter. Any thread; it lives while the source does.
  [[nodiscard]] StateSource source() const;

 private:
  struct Place {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::unordered_map<std::string, Place>> arrays_;  // [array] by parameter
};

/// Whether the checkpoint has that array at all.
[[nodiscard]] bool has_array(const Manifest& manifest, std::string_view array);

}  // namespace tandem
