// engine/layout/update_config.hpp — converts a config's optimizer into the form that the update
// kernels take.
#pragma once

#include <vector>

#include "actors/kernels/update/optimizer_step.hpp"
#include "engine/config/config.hpp"

namespace tandem {

/// lr and betas are the config's; a schedule replaces them at each step.
[[nodiscard]] UpdateConfig update_config(const OptimizerConfig& optimizer);

/// Returns the updates of a parameter group: one, and with Muon a second one, AdamW, for parameters
/// that are not orthogonalized (muon_group()).
[[nodiscard]] std::vector<UpdateConfig> update_groups(UpdateConfig group, double adam_lr_factor);

/// Throws user_error if the optimizer does not support the layout of state, or weights of that type
/// have no use for it.
void require_state_layout(const UpdateConfig& update, StateLayout layout, DType type);

/// The type of weights, activations and gradients of a micro-step.
[[nodiscard]] DType compute_type(Precision precision) noexcept;

}  // namespace tandem
