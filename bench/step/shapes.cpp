#include "bench/step/shapes.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "models/causal_lm.hpp"
#include "models/pretrained.hpp"

namespace tandem::bench {

HfConfig qwen3_20m() {
  return parse_hf_config(R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096,
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 1024, "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": true,
    "attention_bias": false, "initializer_range": 0.02, "torch_dtype": "float32"})",
                         "the 20M shape");
}

Model random_model(const HfConfig& config, std::uint64_t seed, std::int64_t lora_rank) {
  TrainedParts parts;
  if (lora_rank > 0) {
    parts.lora = {.rank = lora_rank,
                  .alpha = 2 * static_cast<double>(lora_rank),
                  .targets = {std::string(kAllLinear)}};
  }
  Model model = make_causal_lm(config, {}, seed, parts);
  model.source = random_weights(config, seed);
  return model;
}

Batch random_tokens(std::int64_t rows, std::int64_t length, std::int64_t vocabulary,
                    std::int64_t document_length) {
  const at::Tensor ids = at::empty({rows, length}, at::kLong);
  auto* data = ids.data_ptr<std::int64_t>();
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < rows * length; ++i) {
    state = 1664525U * state + 1013904223U;
    data[i] = static_cast<std::int64_t>(state >> 8) % vocabulary;
  }
  if (document_length == 0) {
    return {ids, ids};
  }
  const at::Tensor positions =
      at::arange(length, at::kLong).remainder(document_length).expand({rows, length}).contiguous();
  return {.inputs = ids, .labels = ids.masked_fill(positions.eq(0), -100), .positions = positions};
}

}  // namespace tandem::bench
