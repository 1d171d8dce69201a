// engine/plan/nvme_spill.hpp — which units' state leaves host memory for NVMe, beside an
// accelerator, where the rest of the placement has no room there.
//
// Pure: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/memory/memory_plan.hpp"
#include "engine/placement/placement_model.hpp"

namespace tandem {

/// Of the runs of units that make `room` for what stays, each as short as it can be, the one with
/// the shortest step, then the one with the fewest bytes, into `input`; all units where that is too
/// few. `disk_speed`: PlacementSpeeds::disk, asked where something has to leave. The step; absent:
/// all has room.
[[nodiscard]] std::optional<double> spill_to_nvme(const Model& model, PlacementProblem problem,
                                                  std::int64_t room,
                                                  const std::function<double()>& disk_speed,
                                                  PlanInput& input);

}  // namespace tandem
