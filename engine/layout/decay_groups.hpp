// engine/layout/decay_groups.hpp — which parameters take no weight decay where decay_norms is off:
// Hugging Face's Trainer decays neither norms nor biases, DeepSpeed's single group decays all.
#pragma once

#include <string_view>

namespace tandem {

/// By the name of a parameter, as the Trainer tells them: "bias", "layernorm" or "rmsnorm" anywhere
/// in it, or a part between dots that is "norm" or ends with "_norm", whatever the case; and
/// GPT-2's "ln_1", "ln_2" and "ln_f", which the Trainer knows by their class.
[[nodiscard]] bool is_norm_or_bias(std::string_view name);

}  // namespace tandem
