// engine/plan/nvme_spill.hpp — chooses, with an accelerator, the units whose state moves from host
// memory to NVMe because it does not fit.
//
// Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/memory/memory_plan.hpp"
#include "engine/placement/placement_model.hpp"

namespace tandem {

/// Whether the state on the host, without shadows, exceeds `room`.
[[nodiscard]] bool overflows_host(const Model& model, const PlanInput& input, std::int64_t room);

/// If overflows_host(): moves state to NVMe in `input`. Among the sets of units with which the rest
/// fits it takes the one with the shortest step, and of equally good ones (kAsGood) the one with
/// the fewest bytes on NVMe; all units if no set is enough. With few units it tries every set; with
/// more it tries runs, and changes of one or two units of the best run. Returns the step's time;
/// nullopt if no unit can move.
[[nodiscard]] std::optional<double> spill_to_nvme(const Model& model,
                                                  const PlacementProblem& problem,
                                                  std::int64_t room, PlanInput& input);

}  // namespace tandem
