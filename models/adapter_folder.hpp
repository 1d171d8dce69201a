// models/adapter_folder.hpp — adapters in the folder that PEFT's save_pretrained writes and its
// from_pretrained reads: adapter_config.json and adapter_model.safetensors.
//
// A tensor's name is "base_model.model." and the parameter's name. The folder is not trusted:
// open() refuses, by name, a feature of its config that is not computed here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "engine/types/model.hpp"
#include "models/adapter_targets.hpp"
#include "models/io/hf_config.hpp"
#include "models/name_pattern.hpp"
#include "models/save_weights.hpp"
#include "models/trained_parts.hpp"

namespace tandem {

class JsonValue;

inline constexpr std::string_view kAdapterConfigFile = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsFile = "adapter_model.safetensors";

[[nodiscard]] bool is_adapter_folder(const std::filesystem::path& folder);
/// Returns `name`/adapter if `name` is the folder of a run with adapters, else `name`.
[[nodiscard]] std::filesystem::path resolve_adapter_folder(const std::string& name);
/// True if the folder of adapters has a tokenizer, which then goes before the base's.
[[nodiscard]] bool has_own_tokenizer(const std::filesystem::path& adapters);

/// One module of the base that has adapters; the tensors belong to the folder.
struct AdapterModule {
  std::int64_t rank = 0;
  double scale = 1;
  bool on_embedding = false;              // A is [rank, rows], B [width, rank]
  const TensorInfo* a = nullptr;          // [rank, in]
  const TensorInfo* b = nullptr;          // [out, rank]
  const TensorInfo* magnitude = nullptr;  // DoRA's; null: none
  const TensorInfo* bias = nullptr;       // of B (lora_bias); null: none
};

class AdapterFolder {
 public:
  /// Throws user_error if the folder holds no adapters, if its config is malformed or asks for a
  /// feature that is not computed here, or if a tensor is not an adapter's.
  static AdapterFolder open(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  /// Returns the options of its training; the targets are the full names of the modules in the
  /// file.
  [[nodiscard]] const LoraOptions& lora() const noexcept { return lora_; }
  /// Returns the base model that the config names, a folder or a hub id; empty if it names none. A
  /// path relative to this folder is returned with the folder before it, if it exists.
  [[nodiscard]] const std::string& base_model() const noexcept { return base_model_; }
  [[nodiscard]] bool has(std::string_view parameter) const;
  [[nodiscard]] const SafetensorsFile& file() const noexcept { return weights_; }
  /// Returns the modules that have adapters, by their full names.
  [[nodiscard]] const std::map<std::string, AdapterModule>& modules() const { return modules_; }
  /// Returns, by parameter name, the tensors that replace parameters of the base: parameters that
  /// were trained whole, and copies.
  [[nodiscard]] const std::map<std::string, const TensorInfo*>& whole() const { return whole_; }
  /// Whether modules_to_save names the parameter's module.
  [[nodiscard]] bool is_trained_whole(std::string_view parameter) const;
  /// ensure_weight_tying
  [[nodiscard]] bool keeps_tie() const noexcept { return keeps_tie_; }
  /// Returns the first feature of these adapters that this engine can merge and use but not train;
  /// empty if there is none.
  [[nodiscard]] std::string beyond_training(const HfConfig& config) const;
  /// Returns a note on the members of the config that no list has and that ask for nothing.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  /// Returns a note on the modules of the base that target_modules names and the file lacks: they
  /// stay as they are. Empty if there are none. Throws user_error if PEFT would draw their adapters
  /// at random, or if the file has modules that "all-linear" does not mean.
  [[nodiscard]] std::string absent_targets(const HfConfig& base) const;
  /// Throws user_error, which names both shapes, if the tensor does not have `shape`.
  void require_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape) const;
  /// Reads elements [begin, end) of a parameter that the folder has. Any thread.
  void read_f32(std::string_view parameter, std::int64_t begin, std::int64_t end, float* out) const;
  /// Throws user_error unless the model's trained parameters are those of the folder, with the same
  /// shapes. `tied`: the model's head is its embedding; a folder that has the embedding must then
  /// have been trained with ensure_weight_tying.
  void require_fits(const Model& model, bool tied) const;
  /// Throws user_error if the folder has a frozen parameter whose value differs from the base: when
  /// these adapters are trained further, they are saved without it.
  void require_copies(const Model& model, const ParameterSource& base) const;

 private:
  AdapterFolder(std::filesystem::path folder, SafetensorsFile weights)
      : folder_(std::move(folder)), weights_(std::move(weights)) {}
  struct Pattern {
    NamePattern names;
    double value;
  };

  void read_config();
  static void read_pattern(const JsonValue& root, std::string_view key, std::vector<Pattern>& out);
  static double by_pattern(const std::vector<Pattern>& patterns, const std::string& module,
                           double otherwise);
  void find_targets();
  void place(const TensorInfo& tensor);
  /// Returns a parameter's tensor, whose name may contain ".default"; nullptr if there is none.
  [[nodiscard]] const TensorInfo* find(std::string_view parameter) const;
  void require_as_config(const std::string& name, const AdapterModule& module) const;
  [[noreturn]] void refuse_left_out(std::string_view module, std::string_view field) const;
  void complete_modules();

  std::filesystem::path folder_;
  SafetensorsFile weights_;
  LoraOptions lora_;
  std::string base_model_;
  bool keeps_tie_ = false;
  bool uses_dora_ = false;
  bool has_lora_bias_ = false;
  bool draws_absent_ = false;  // init_lora_weights is false
  AdapterTargets targets_;
  std::vector<Pattern> ranks_;
  std::vector<Pattern> alphas_;
  std::map<std::string, AdapterModule> modules_;
  std::map<std::string, const TensorInfo*> whole_;
  std::vector<std::string> notes_;
  std::string beyond_training_;  // by the config and the file alone
};

/// Returns the values of a model with adapters. Parameters that `saved` has (null: none) come from
/// it. Other adapters are fresh, as in PEFT: A is uniform within 1 / sqrt(in), B is zero. All other
/// parameters come from `base`. Every fresh element is a function of seed, name and position.
[[nodiscard]] ParameterSource adapter_source(ParameterSource base, std::uint64_t seed,
                                             std::shared_ptr<const AdapterFolder> saved);

/// Returns the adapter_config.json of adapters that were trained with `lora` on the model called
/// `base_model`, whose config is `config`.
[[nodiscard]] std::string adapter_config_json(const LoraOptions& lora, const HfConfig& config,
                                              std::string_view base_model);

/// Writes the engine's parameters that learn as a folder of adapters, which is replaced as a whole.
/// All ranks call it; the first one writes; `describe` may add files. Throws as save_weights()
/// does.
void save_adapters(Engine& engine, const std::filesystem::path& folder, TensorType type,
                   const LoraOptions& lora, const HfConfig& config, const std::string& base_model,
                   const FolderDescription& describe = {});

}  // namespace tandem
