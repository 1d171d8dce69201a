// models/foreign/checkpoint_builder.hpp — shared code of the readers of foreign checkpoints: checks
// names, and reads the fields that DeepSpeed's model files have at every stage.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/foreign/imported_checkpoint.hpp"
#include "models/foreign/torch_file.hpp"

namespace tandem {

using TorchFiles = std::vector<std::shared_ptr<const TorchFile>>;

/// A parameter as `param_shapes` lists it.
struct ListedParam {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
};

/// Returns whether `name` may be a tensor's: UTF-8 without control characters, not empty and not
/// long.
bool is_tensor_name(std::string_view name);
/// Returns whether DeepSpeed itself puts this key into a model file; all other keys are client
/// state.
bool is_deepspeed_key(std::string_view key);
/// Returns the member of a dict; throws the file's error if it is missing.
const PickleValue& member_of(const TorchFile& file, const PickleValue& dict, std::string_view key);
/// Returns an integer member; `otherwise` if it is missing or None. Throws the file's error if it
/// is no integer.
std::int64_t integer_of(const TorchFile& file, const PickleValue& dict, std::string_view key,
                        std::int64_t otherwise);
/// Returns a number, or the element of a tensor with one element; nullopt for any other value.
std::optional<double> number_of(const TorchFile& file, const PickleValue* value);
/// The same for a count of steps; nullopt also if it cannot be one.
std::optional<std::int64_t> count_of(const TorchFile& file, const PickleValue* value);

/// Returns the groups of `param_shapes` in a model file, in the order of the flat groups; empty if
/// it is missing or None, as at stage 0.
std::vector<std::vector<ListedParam>> read_param_shapes(const TorchFile& model);

/// Returns the names of the module's buffers; valid while the file lives.
std::set<std::string_view> buffer_names_of(const TorchFile& model);

ImportedTensor::ReadF32 reader_of(std::shared_ptr<const TorchFile> file, const TorchTensor& tensor);

class CheckpointBuilder {
 public:
  CheckpointBuilder(std::string kind, const std::filesystem::path& path);

  [[nodiscard]] ImportedCheckpoint& checkpoint() noexcept { return checkpoint_; }
  [[nodiscard]] bool has(std::string_view name) const;

  /// Adds a tensor. Throws the error of `file` if the name is not valid or was added before.
  void add(ImportedTensor tensor, const TorchFile& file);
  /// Adds a tensor as the file holds it, without optimizer state.
  void add_stored(const PickleValue& name, const std::shared_ptr<const TorchFile>& file,
                  const TorchTensor& tensor, bool frozen, bool buffer);

  /// Adds `alias` as another name of the tensor `name`.
  void tie(const std::string& alias, const std::string& name);

  /// Reads steps, schedule, configuration and client state from a model file.
  void read_common(const TorchFile& model);
  /// Reads the scaler that DeepSpeed pickles with its ZeRO optimizers; a constant scale of 1 counts
  /// as none.
  void read_scaler(const TorchFile& file, const PickleValue* scaler);
  /// Adds buffers, frozen parameters and tied names from the model files of all ranks (one file
  /// below stage 3), and puts all tensors into the module's order. Call it after the trained
  /// parameters were added.
  void finish_module(const TorchFiles& models, int stage);

  [[nodiscard]] ImportedCheckpoint take() && { return std::move(checkpoint_); }

 private:
  void read_client_state(const TorchFile& model);
  void add_shared(const TorchFile& model);
  void add_rest(const std::shared_ptr<const TorchFile>& model, int stage);
  void add_fragments(const TorchFiles& models);
  void order_as(const PickleValue& module);

  ImportedCheckpoint checkpoint_;
  std::unordered_map<std::string, std::size_t> place_;
};

}  // namespace tandem
