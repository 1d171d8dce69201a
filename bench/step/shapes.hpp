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

/// The model with weights drawn from `seed`, as tools/demo/make_model draws them.
Model random_model(const HfConfig& config, std::uint64_t seed);

/// One batch of pseudo-random tokens, every one a label: s' = 1664525 s + 1013904223 (mod 2^32),
/// token = (s >> 8) mod V.
Batch random_tokens(std::int64_t rows, std::int64_t length, std::int64_t vocabulary);

}  // namespace tandem::bench
