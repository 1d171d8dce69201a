// engine/plan/nvme_spill.hpp — which units' state leaves host memory for NVMe, beside an
// accelerator, where the rest of the placement has no room there.
//
// Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/memory/memory_plan.hpp"
#include "engine/placement/placement_model.hpp"

namespace tandem {

/// Whether what stays, without second copies, has no `room` on the host.
[[nodiscard]] bool overflows_host(const Model& model, const PlanInput& input, std::int64_t room);

/// Where it has none: of the runs of units that make room for what stays, each as short as it can
/// be, the one with the shortest step, then the one with the fewest bytes, into `input`; all units
/// where that is too few. The step; absent: no unit can leave.
[[nodiscard]] std::optional<double> spill_to_nvme(const Model& model,
                                                  const PlacementProblem& problem,
                                                  std::int64_t room, PlanInput& input);

}  // namespace tandem
