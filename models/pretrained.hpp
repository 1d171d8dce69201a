// models/pretrained.hpp — opens and saves a model folder in Hugging Face format: config, weights,
// tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "engine/types/model.hpp"
#include "models/io/hf_config.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/trained_parts.hpp"

namespace tandem {

class AdapterFolder;
class Engine;
class MergedWeights;

/// Fresh weights (models/checkpoint_layout.hpp, fill_initial()): every element is a function of
/// seed, parameter name and position alone.
ParameterSource random_weights(const HfConfig& config, std::uint64_t seed);

struct PretrainedOptions {
  bool trains = true;             // false: no parameter of the model learns
  bool may_lack_weights = false;  // then they are drawn from `seed`
  std::uint64_t seed = 0;         // of such weights, of dropout and of fresh adapters
  TrainedParts parts = {};        // default: all of the model learns
  /// A folder of adapters (models/adapter_folder.hpp), which the model has with their saved values;
  /// `parts` then has no adapters. Empty: none.
  std::string adapters_from = {};
  /// A file with one token in each line that the published model does not have; empty: none. Not
  /// with adapters.
  std::string add_tokens = {};
};

/// Returns the folder of the tokenizer of a model or of adapters (a folder or a hub id): their own
/// where they have one, as AutoTokenizer does, else that of the base model.
[[nodiscard]] std::filesystem::path resolve_tokenizer_folder(const std::string& name);

class Pretrained {
 public:
  /// Opens a folder or a hub id. Matches the weights with the config; reads no values yet. A folder
  /// of adapters alone is opened with the base model that it names, if nothing is to learn.
  static Pretrained open(const std::string& name, const PretrainedOptions& options = {});

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  /// The folder of the tokenizer's files: folder(), that of adapters which were asked for by name
  /// and have their own, or one with the new tokens.
  [[nodiscard]] const std::filesystem::path& tokenizer_folder() const noexcept {
    return tokenizer_folder_;
  }
  [[nodiscard]] const HfConfig& config() const noexcept { return config_; }
  /// Returns a line for each oddity in the model's files that is no error. If a hub id was given,
  /// the first line names its snapshot.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  /// Returns the model with its weights' source; `leaf_module`: see make_causal_lm().
  [[nodiscard]] Model model(std::string_view leaf_module = {}) const;
  /// Returns the files of the weights and of adapters; none if the weights are drawn.
  [[nodiscard]] std::vector<std::filesystem::path> weight_files() const;
  /// The adapters' settings; without adapters any() is false.
  [[nodiscard]] const LoraOptions& lora() const noexcept { return options_.parts.lora; }

  /// Throws user_error if saving into `folder` would replace this model or its adapters.
  void check_saves_elsewhere(const std::filesystem::path& folder) const;
  /// Writes the engine's weights as a folder that Transformers loads: safetensors of `type`
  /// (absent: the compute type), config, tokenizer files, the generation config. `end_token`: the
  /// token with which the model has learnt to end a text (save_generation_config()). An older model
  /// there is replaced as a whole. All ranks call it; the first one writes.
  ///
  /// With adapters it writes the adapters and the modules that are saved whole, as PEFT does.
  void save(Engine& engine, const std::filesystem::path& folder,
            std::optional<TensorType> type = std::nullopt,
            std::optional<std::int32_t> end_token = std::nullopt) const;

 private:
  Pretrained(std::string name, std::filesystem::path folder, std::filesystem::path tokenizer_folder,
             HfConfig config, Tokenizer tokenizer, ParameterSource source,
             PretrainedOptions options, std::vector<std::string> notes);
  void use_adapters();

  std::string name_;  // as it was given; a folder's whole path
  std::filesystem::path folder_;
  std::filesystem::path tokenizer_folder_;
  HfConfig config_;
  Tokenizer tokenizer_;
  ParameterSource source_;
  PretrainedOptions options_;
  std::vector<std::string> notes_;
  std::shared_ptr<const AdapterFolder> adapters_;  // null: there are no saved ones
  std::shared_ptr<const MergedWeights> merged_;    // of adapters that are not a part of the model
};

}  // namespace tandem
