// engine/plan/activation_offload.hpp — offloading of boundaries from forward to backward: the share
// that is asked for, and its cost.
//
// Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "engine/config/config.hpp"
#include "engine/memory/memory_plan.hpp"
#include "engine/placement/placement_plan.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"

namespace tandem {

/// Returns the options with the config's cpu_checkpointing, if they leave the share open,
/// boundaries are kept, and there is a destination for them. Call with_nvme_of() first. Throws
/// user_error for an impossible share.
[[nodiscard]] EngineOptions with_activation_offload_of(const Config& config, EngineOptions options);

/// Returns a line that names the offloaded boundaries, their destination and, with `hardware`,
/// whether compute hides the copies by the step model, with all other traffic on the link; empty if
/// none is offloaded. With the link to itself, the copy of a transformer layer's boundary ends
/// before the layer if compute / link < 12 x hidden size (FLOP/s over bytes/s, in 16 bits), for any
/// length of the row.
[[nodiscard]] std::string activation_offload_text(const Model& model, const PlanInput& input,
                                                  const MemoryPlan& plan,
                                                  const std::optional<PlacementHardware>& hardware);

}  // namespace tandem
