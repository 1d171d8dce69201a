// engine/layout/update_config.hpp — the optimizer of a config as the update kernels take it.
#pragma once

#include <vector>

#include "actors/kernels/update/optimizer_step.hpp"
#include "engine/config/config.hpp"

namespace tandem {

/// lr and betas are the optimizer block's; a schedule puts its own in their place, step by
/// step.
[[nodiscard]] UpdateConfig update_config(const OptimizerConfig& optimizer);

/// The updates of a parameter group: the one, and with Muon a second, AdamW, for parameters that
/// are not orthogonalized (muon_group()).
[[nodiscard]] std::vector<UpdateConfig> update_groups(UpdateConfig group, double adam_lr_factor);

/// Throws user_error where the optimizer has no such layout of state, or weights of that type have
/// no use for it.
void require_state_layout(const UpdateConfig& update, StateLayout layout, DType type);

/// The type of weights, activations and gradients of a micro-step.
[[nodiscard]] DType compute_type(Precision precision) noexcept;

}  // namespace tandem
