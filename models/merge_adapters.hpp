// models/merge_adapters.hpp — merges adapters into their base weights: writes a model folder that
// needs no PEFT.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "models/adapter_folder.hpp"

namespace tandem {

struct MergedAdapters {
  std::size_t adapted = 0;   // matrices that became W + scale B A
  std::size_t replaced = 0;  // tensors that were saved whole
  std::string absent;        // AdapterFolder::absent_targets
};

/// Writes the model of `base`, with the adapters merged into it, as the new folder `output`, which
/// appears complete or not at all. W + scale B A is computed in fp32 and rounded once, to the type
/// that W has in its file; every other weight keeps its value. Throws Error if adapters and base do
/// not belong together, if a sum is not finite, or if the folder cannot be written; then nothing
/// appears.
MergedAdapters merge_adapters(const AdapterFolder& adapters, const std::filesystem::path& base,
                              const std::filesystem::path& output);

}  // namespace tandem
