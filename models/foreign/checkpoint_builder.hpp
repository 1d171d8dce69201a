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

/// Whether it may be the name of a tensor: UTF-8 without control characters.
bool is_tensor_name(std::string_view name);
/// Whether DeepSpeed itself puts this key into a model file; the rest is the caller's.
bool is_deepspeed_key(std::string_view key);
/// The member of a dict, or the file's error.
const PickleValue& member_of(const TorchFile& file, const PickleValue& dict, std::string_view key);
/// An integer member; `otherwise` where it is missing or None.
std::int64_t integer_of(const TorchFile& file, const PickleValue& dict, std::string_view key,
                        std::int64_t otherwise);
/// A number, or the one of a tensor with one element; nothing if it is something else.
std::optional<double> number_of(const TorchFile& file, const PickleValue* value);
/// The same as a count of steps.
std::optional<std::int64_t> count_of(const TorchFile& file, const PickleValue* value);

/// The groups of `param_shapes` in a model file, in the order of the flat groups; empty where it is
/// None, as at stage 0.
std::vector<std::vector<ListedParam>> read_param_shapes(const TorchFile& model);

/// The names in the module that are no parameters; valid while the file lives.
std::set<std::string_view> buffer_names_of(const TorchFile& model);

ImportedTensor::ReadF32 reader_of(std::shared_ptr<const TorchFile> file, const TorchTensor& tensor);

class CheckpointBuilder {
 public:
  CheckpointBuilder(std::string kind, const std::filesystem::path& path);

  [[nodiscard]] ImportedCheckpoint& checkpoint() noexcept { return checkpoint_; }
  [[nodiscard]] bool has(std::string_view name) const;

  /// Error of `file` if the name is none, or there already.
  void add(ImportedTensor tensor, const TorchFile& file);
  /// A tensor as the file holds it, without optimizer state.
  void add_stored(const PickleValue& name, const std::shared_ptr<const TorchFile>& file,
                  const TorchTensor& tensor, bool frozen, bool buffer);

  /// Another name of a tensor that is there.
  void tie(const std::string& alias, const std::string& name);

  /// Steps, schedule, configuration and the caller's keys out of a model file.
  void read_common(const TorchFile& model);
  /// The scaler that DeepSpeed pickles with its ZeRO optimizers; nothing where it scales by 1.
  void read_scaler(const TorchFile& file, const PickleValue* scaler);
  /// Buffers, frozen parameters and tied names out of the model files of all ranks (one below stage
  /// 3), after the trained parameters; and the module's order for all of them.
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
