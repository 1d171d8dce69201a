// engine/layout/decay_groups.hpp — which parameters take no weight decay where decay_norms is off:
// Hugging Face's Trainer decays neither norms nor biases, DeepSpeed's single group decays all.
#pragma once

#include <string_view>

namespace tandem {

/// Whether a parameter's name is that of a norm or a bias by the Trainer's rules: it contains
/// "bias", "layernorm" or "rmsnorm", or a component between dots is "norm" or ends with "_norm", in
/// any case; or it is GPT-2's "ln_1", "ln_2" or "ln_f", which the Trainer recognises by their
/// class.
[[nodiscard]] bool is_norm_or_bias(std::string_view name);

}  // namespace tandem
