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

/// Where it has none: among the sets of units that leave room for what stays, the one with the
/// shortest step, and of those that are as good (kAsGood) the one with the fewest bytes on NVMe,
/// into `input`; all units where even that is too few. With few units it looks at every set; with
/// more at runs, and at what changing one unit or two makes of the best. Returns the step; absent:
/// no unit can leave.
[[nodiscard]] std::optional<double> spill_to_nvme(const Model& model,
                                                  const PlacementProblem& problem,
                                                  std::int64_t room, PlanInput& input);

}  // namespace tandem
