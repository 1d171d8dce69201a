// models/save_weights.hpp — saves an engine's weights as safetensors under their parameters' names.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "engine/engine.hpp"

namespace tandem {

/// Durably writes the files beside the weights (config, tokenizer) into a folder.
using FolderDescription = std::function<void(const std::filesystem::path&)>;

/// The parameters that are saved, their names, the name of their one file, and the entries of an
/// older folder that are removed.
struct SavedPart {
  std::string file;
  /// Returns the names under which a parameter is saved; none: it is not saved.
  std::function<std::vector<std::string>(const ParameterSpec&)> names;
  std::function<bool(std::string_view)> is_replaced;
};

/// Writes model.safetensors (or shards with an index) into `folder`, in `type`, rounded from the
/// fp32 masters. All ranks call it, since each has a slice; the first one writes. Throws Error when
/// the folder cannot be written, or a weight is not finite (exit code 5); then nothing appears.
///
/// The folder is replaced as a whole by one rename (AtomicFolder): whenever the process ends, it
/// holds the older model or the new one. Files in it that belong to no model stay; files that are
/// put there meanwhile are lost.
void save_weights(Engine& engine, const std::filesystem::path& folder, TensorType type,
                  const FolderDescription& describe = {});
/// The same for a part of the model, in one file.
void save_part(Engine& engine, const std::filesystem::path& folder, TensorType type,
               const SavedPart& part, const FolderDescription& describe = {});

/// Returns the type in which the engine computes.
TensorType compute_type(const Engine& engine);

/// Returns the type fp32, bf16 or fp16; nullopt for any other name.
std::optional<TensorType> type_by_name(std::string_view name);

/// DeepSpeed's save_16bit_model: the weights in the type that the engine computes in (fp32 stays
/// fp32).
void save_16bit_model(Engine& engine, const std::filesystem::path& folder);

}  // namespace tandem
