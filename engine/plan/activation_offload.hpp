// engine/plan/activation_offload.hpp — boundaries between segments that lie elsewhere between
// forward and backward: what is asked for, and what it costs.
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

/// The options with what the config's cpu_checkpointing says, where they leave it open and where
/// boundaries are kept that have somewhere to go; behind with_nvme_of(). Throws user_error for a
/// share that no run can have.
[[nodiscard]] EngineOptions with_activation_offload_of(const Config& config, EngineOptions options);

/// Says which boundaries leave, where they go, and with `hardware` whether compute hides that, by
/// the step model, with all else that uses the link; empty: none leaves. A copy that has the link
/// to itself is done before its segment for a transformer's layer if compute / link < 12 x hidden
/// size (FLOP/s over bytes/s, in 16 bits), whatever the length of the row.
[[nodiscard]] std::string activation_offload_text(const Model& model, const PlanInput& input,
                                                  const MemoryPlan& plan,
                                                  const std::optional<PlacementHardware>& hardware);

}  // namespace tandem
