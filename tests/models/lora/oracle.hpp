// tests/models/lora/oracle.hpp — a base model with adapters as PEFT saved them, and what PEFT
// computed with it.
#pragma once

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "models/adapter_folder.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/io/hf_config.hpp"
#include "tests/data/references.hpp"

namespace tandem::test {

struct LoraOracle {
  std::filesystem::path path;
  std::string targets;  // as given to PEFT

  [[nodiscard]] std::string name() const { return path.filename().string(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return path; }
  [[nodiscard]] std::filesystem::path checkpoint() const {
    return AdapterFolder::open(folder() / "adapter_initial").base_model();
  }
  [[nodiscard]] HfConfig config() const { return read_hf_config(checkpoint()); }
  /// The settings of the case as a user types them.
  [[nodiscard]] LoraOptions lora() const {
    LoraOptions lora = AdapterFolder::open(folder() / "adapter_initial").lora();
    lora.targets = {};
    for (std::size_t at = 0; at <= targets.size();) {
      const std::size_t comma = std::min(targets.find(',', at), targets.size());
      lora.targets.push_back(targets.substr(at, comma - at));
      at = comma + 1;
    }
    return lora;
  }
  /// With the values of one of the case's adapter folders.
  [[nodiscard]] Model model(const std::string& adapters) const {
    const auto saved =
        std::make_shared<const AdapterFolder>(AdapterFolder::open(folder() / adapters));
    Model model = make_causal_lm(config(), {}, 0, {.lora = lora()});
    saved->require_fits(model, config().tie_word_embeddings);
    model.source = adapter_source(base_source(checkpoint()), 0, saved);
    return model;
  }
  static ParameterSource base_source(const std::filesystem::path& folder) {
    const auto reader = std::make_shared<const CheckpointReader>(
        CheckpointReader::open(folder, read_hf_config(folder)));
    return [reader](const ParameterSpec& p, std::int64_t begin, std::int64_t end, float* out) {
      reader->read_f32(p.name, begin, end, out);
    };
  }
};
inline void PrintTo(const LoraOracle& one, std::ostream* out) { *out << one.name(); }

/// What tests/data/lora/make.py made, and the larger ones where they are there.
inline std::vector<LoraOracle> lora_oracles() {
  std::vector<LoraOracle> found;
  for (const std::filesystem::path& folder :
       references({"lora/small_qwen3_qv", "lora/small_qwen2_all_linear"},
                  {"oracles/lora/qwen3_qv", "oracles/lora/llama_all_linear"})) {
    const bool two = folder.string().ends_with("_qv");
    found.push_back({folder, two ? "q_proj,v_proj" : "all-linear"});
  }
  return found;
}

}  // namespace tandem::test
