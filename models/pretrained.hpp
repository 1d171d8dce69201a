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
  bool trains = true;             // else nothing of the model learns
  bool may_lack_weights = false;  // then they are drawn from `seed`
  std::uint64_t seed = 0;         // of such weights, of dropout and of fresh adapters
  TrainedParts parts = {};        // default: all of the model learns
  /// A folder of adapters (models/adapter_folder.hpp): they are what `parts` has none of, and go on
  /// from their values; empty: none.
  std::string adapters_from = {};
  /// Tokens that the published model does not have, one in each line of a file; empty: none. Not
  /// with adapters.
  std::string add_tokens = {};
};

class Pretrained {
 public:
  /// Opens folder or hub id. Weights are matched with the config here; nothing is read yet. A
  /// folder of adapters is opened with the base model that it names, where nothing is to learn.
  static Pretrained open(const std::string& name, const PretrainedOptions& options = {});

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  /// The folder of the tokenizer's files: folder(), or one with the new tokens.
  [[nodiscard]] const std::filesystem::path& tokenizer_folder() const noexcept {
    return tokenizer_folder_;
  }
  [[nodiscard]] const HfConfig& config() const noexcept { return config_; }
  /// Lines about what is odd in the model's files and no error; first, where a hub id was given,
  /// which snapshot it stands for.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  /// The model with its weights' source; `leaf_module` as make_causal_lm() has it.
  [[nodiscard]] Model model(std::string_view leaf_module = {}) const;
  /// The files that the weights lie in, those of adapters among them; none where they are drawn.
  [[nodiscard]] std::vector<std::filesystem::path> weight_files() const;
  /// The adapters' settings; without adapters any() is false.
  [[nodiscard]] const LoraOptions& lora() const noexcept { return options_.parts.lora; }

  /// Throws user_error where saving into `folder` would replace the model that this is.
  void check_saves_elsewhere(const std::filesystem::path& folder) const;
  /// Writes the engine's weights as a folder that Transformers loads: safetensors of `type`
  /// (nothing: the compute type), config, tokenizer files, the generation config. `end_token`: what
  /// the model has learnt to end a text with (save_generation_config()). An older model there is
  /// replaced as a whole. All ranks call it; the first one writes.
  ///
  /// With adapters it writes these and what is saved whole beside them, as PEFT does.
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
  std::shared_ptr<const AdapterFolder> adapters_;  // null: none that are gone on from
  std::shared_ptr<const MergedWeights> merged_;    // of adapters that are no part of the model
};

}  // namespace tandem
