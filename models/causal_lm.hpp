// models/causal_lm.hpp — a causal language model out of a Hugging Face config.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/types/model.hpp"
#include "models/io/hf_config.hpp"

namespace tandem {

/// Units and segments with the parameter names of the Hugging Face checkpoint; the source is left
/// to the caller. Nothing is allocated but the description. `leaf_module`: the class, as
/// Transformers names it, whose modules are gathered as one unit each (DeepSpeed's leaf modules);
/// empty: a block with all in it. Throws user_error if the family has no such one. `seed`: of the
/// dropout that the config asks for, in training.
Model make_causal_lm(const HfConfig& config, std::string_view leaf_module = {},
                     std::uint64_t seed = 0);

/// Architectures as config.json names them, e.g. "Qwen3ForCausalLM".
std::vector<std::string> known_architectures();

}  // namespace tandem
