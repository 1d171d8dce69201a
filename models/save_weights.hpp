// models/save_weights.hpp — an engine's weights as safetensors under their parameters' names.
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

/// Writes what stands beside weights (config, tokenizer) into a folder. Durably.
using FolderDescription = std::function<void(const std::filesystem::path&)>;

/// The parameters that are saved, their names, the name of their one file; and the entries of an
/// older folder that go.
struct SavedPart {
  std::string file;
  /// None: it is not saved; several: it is saved under each of them.
  std::function<std::vector<std::string>(const ParameterSpec&)> names;
  std::function<bool(std::string_view)> is_replaced;
};

/// Writes model.safetensors (or shards with an index) into `folder`, in `type`, rounded from the
/// fp32 masters. All ranks call it, since each has a slice; the first one writes. Throws Error when
/// the folder cannot be written, or a weight is not finite (5); then nothing appears.
///
/// The folder is replaced as a whole by one rename (AtomicFolder): whenever the process ends, it
/// holds the older model or the new one. Files that are not of a model stay in it; those that are
/// put there meanwhile are lost.
void save_weights(Engine& engine, const std::filesystem::path& folder, TensorType type,
                  const FolderDescription& describe = {});
/// The same for a part of the model, in one file.
void save_part(Engine& engine, const std::filesystem::path& folder, TensorType type,
               const SavedPart& part, const FolderDescription& describe = {});

/// The type that the engine computes in.
TensorType compute_type(const Engine& engine);

/// fp32, bf16 or fp16; nothing for any other name.
std::optional<TensorType> type_by_name(std::string_view name);

/// DeepSpeed's save_16bit_model: the weights in the type that the engine computes in (fp32 stays
/// fp32).
void save_16bit_model(Engine& engine, const std::filesystem::path& folder);

}  // namespace tandem
