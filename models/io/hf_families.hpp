// models/io/hf_families.hpp — what of config.json differs between model families: names, defaults,
// features. Only hf_config.cpp includes it.
#pragma once

#include "models/io/hf_config.hpp"
#include "models/io/json.hpp"

namespace tandem {

/// Reads model_type, the sizes and the features into `config`; pad_token_id gets the family's
/// default. Error: see read_hf_config().
void read_family(const JsonValue& root, HfConfig& config);

/// The config's rotary positions in either spelling. `theta`: where the file has none; `is_phi3`:
/// Phi-3's own names.
struct RopeDefaults {
  double theta = 10000.0;
  bool is_phi3 = false;
};
RotaryScaling read_rope(const JsonValue& root, const HfConfig& config,
                        const RopeDefaults& defaults);

}  // namespace tandem
