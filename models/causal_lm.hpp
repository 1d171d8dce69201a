// models/causal_lm.hpp — makes a causal language model from a Hugging Face config.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "engine/types/model.hpp"
#include "models/io/hf_config.hpp"
#include "models/trained_parts.hpp"

namespace tandem {

struct Family;

/// Reads `path`: the file, or the folder that holds config.json. Throws user_error when it is
/// missing or not JSON, when no family has its model_type (the message lists the known types), when
/// a size makes no sense, or when it asks for a feature that the models do not have. A folder's
/// weights decide whether the head is the embedding (untie_if_stored_apart()).
HfConfig read_hf_config(const std::filesystem::path& path);
/// The same for a text; errors call it `file`.
HfConfig parse_hf_config(std::string_view json, std::string_view file);

/// All families, by model_type.
std::span<const Family* const> known_families();

/// The family of a config that was read (models/families/family.hpp).
const Family& family_of(const HfConfig& config);

/// Returns the units and segments of a model, with the parameter names of the Hugging Face
/// checkpoint. The caller sets the source. Only the description is allocated. `leaf_module`: the
/// class, as Transformers names it, whose modules are gathered as one unit each (DeepSpeed's leaf
/// modules); if it is empty, a layer with all its parameters is one unit. Throws user_error if the
/// family has no such module. `seed`: for dropout in training, which the config and adapters may
/// ask for. `parts`: the trained parameters; default: all.
Model make_causal_lm(const HfConfig& config, std::string_view leaf_module = {},
                     std::uint64_t seed = 0, const TrainedParts& parts = {});

}  // namespace tandem
