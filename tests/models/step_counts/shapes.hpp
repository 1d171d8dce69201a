// tests/models/step_counts/shapes.hpp — the models whose steps are counted, with the sizes of the
// config.json that their makers publish, and the page that shows the counts.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "tests/support/process/paths.hpp"

namespace tandem::test {

struct ModelSizes {
  const char* name;
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim;
  bool is_tied;
  std::int64_t vocabulary = 151936;

  /// Returns the config.json of a Qwen3 with these sizes.
  [[nodiscard]] std::string config() const {
    return fmt::format(R"({{"model_type": "qwen3", "vocab_size": {}, "hidden_size": {},
          "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
          "num_key_value_heads": {}, "head_dim": {}, "hidden_act": "silu", "rms_norm_eps": 1e-6,
          "rope_theta": 1000000, "max_position_embeddings": 40960,
          "tie_word_embeddings": {}}})",
                       vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim,
                       is_tied);
  }
};

inline constexpr ModelSizes kQwen3Small{"Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, true};
inline constexpr ModelSizes kQwen3Large{"Qwen3-8B", 4096, 12288, 36, 32, 8, 128, false};

/// Returns whether docs/device.md has this line.
inline bool page_has_row(const std::string& line) {
  std::ifstream page(source_path("docs/device.md"));
  for (std::string read; std::getline(page, read);) {
    if (read == line) {
      return true;
    }
  }
  return false;
}

}  // namespace tandem::test
