// models/io/hf_config.hpp — a Hugging Face config.json as the models need it, in both spellings
// (rope_theta/torch_dtype of published checkpoints, rope_parameters/dtype of Transformers 5).
//
// Invariant: a config that was read is consistent (sizes positive, heads divisible, ids inside the
// vocabulary) and asks for nothing that the models here compute differently: an unsupported feature
// is an error, and is never ignored silently.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/kernels/dropout.hpp"
#include "models/layers/rotary_scaling.hpp"

namespace tandem {

struct HfConfig {
  std::string model_type;  // of one of the families (models/families/)

  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // GPT-2: num_attention_heads
  std::int64_t head_dim = 0;             // default: hidden_size / num_attention_heads
  std::int64_t intermediate_size = 0;    // GPT-2: n_inner, or 4 * n_embd where that is null
  std::int64_t max_position_embeddings = 0;

  double norm_eps = 0;                       // rms_norm_eps, layer_norm_epsilon
  RotaryScaling rope;                        // kNone: GPT-2
  std::optional<RotaryScaling> window_rope;  // of layers with a window, if it differs
  double attention_scale = 0;                // of the scores; 0: 1 / sqrt(head_dim)
  bool tie_word_embeddings = false;
  bool attention_bias = false;      // of q, k, v
  bool attention_out_bias = false;  // of the projection behind them
  bool mlp_bias = false;
  // For each layer, the number of keys that a position sees, its own included; 0: all. Empty: all
  // keys in every layer.
  std::vector<std::int64_t> windows;
  std::int64_t experts = 0;  // 0: none; the following only with them
  std::int64_t experts_per_token = 0;
  std::int64_t expert_size = 0;            // width of one expert's MLP
  std::vector<std::int64_t> dense_layers;  // the layers that have one MLP instead
  bool norm_topk_prob = false;             // the chosen experts' weights add up to 1
  double router_aux_loss_coef = 0;
  bool output_router_logits = false;  // Transformers adds the routers' loss only with it
  bool packed_experts = false;        // MXFP4: quantization_config of gpt-oss
  double initializer_range = 0.02;
  DropoutRates dropout;  // in training alone

  /// Embedding row that gets no gradient from the input side (Transformers' padding_idx).
  std::optional<std::int64_t> pad_token_id;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;

  // torch_dtype or dtype: "float32", "bfloat16", "float16"; empty where the file has none
  std::string dtype;
  std::string json;  // the file's bytes, for hf_config_json
  // A line for each oddity in the file, or beside it, that is no error.
  std::vector<std::string> notes;

  [[nodiscard]] bool sparse(std::int64_t layer) const noexcept {
    return experts > 0 &&
           std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end();
  }
  /// Coefficient of the routers' own loss; 0: none.
  [[nodiscard]] double router_loss() const noexcept {
    for (std::int64_t layer = 0; output_router_logits && layer < num_hidden_layers; ++layer) {
      if (sparse(layer)) {
        return router_aux_loss_coef;
      }
    }
    return 0;
  }
};

/// Returns the original file with torch_dtype / dtype set to `dtype` ("float32", "bfloat16",
/// "float16") and without quantization_config (saved weights are full-size). Every other byte is
/// kept.
std::string hf_config_json(const HfConfig& config, std::string_view dtype);
void write_hf_config(const HfConfig& config, const std::filesystem::path& folder,
                     std::string_view dtype);

/// Returns the JSON text with the member `key` of the top-level object set to `value` (JSON); a new
/// member comes first. `json` must be a valid JSON object.
std::string with_json_member(std::string_view json, std::string_view key, std::string_view value);

/// Returns the JSON text without the member `key` of the top-level object.
std::string without_json_member(std::string_view json, std::string_view key);

}  // namespace tandem
