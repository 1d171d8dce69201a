// bench/step/shapes.hpp — the models and data of the step benchmarks: fixed shapes, weights drawn
// from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "engine/tensors/segment.hpp"
#include "models/io/hf_config.hpp"

namespace tandem::bench {

/// Qwen3 with 19.8 M parameters: vocabulary 4096, hidden 512, 6 layers, 8 heads, 4 key-value heads,
/// tied.
HfConfig qwen3_20m();

/// The model with weights drawn from `seed`, as tools/demo/make_model draws them. `lora_rank`: of
/// adapters on all linear layers, which then are all that learns; 0: none.
Model random_model(const HfConfig& config, std::uint64_t seed, std::int64_t lora_rank = 0);

/// One batch of pseudo-random tokens, every one a label: s' = 1664525 s + 1013904223 (mod 2^32),
/// token = (s >> 8) mod V. `document_length`: rows are packed with documents of that length, the
/// first of which have no label; 0: a row is one document.
Batch random_tokens(std::int64_t rows, std::int64_t length, std::int64_t vocabulary,
                    std::int64_t document_length = 0);

}  // namespace tandem::bench
