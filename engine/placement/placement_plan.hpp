// engine/placement/placement_plan.hpp — the placement of a run: turns model, sizes and speeds into
// a problem for the solver, and its answer into a line.
//
// Pure, except for measured speeds (bandwidths.hpp). Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/memory/memory_check.hpp"
#include "engine/memory/memory_plan.hpp"
#include "engine/placement/bandwidths.hpp"
#include "engine/placement/placement_solver.hpp"
#include "engine/types/sim_spec.hpp"

namespace tandem {

/// Bytes that updates on the pool read and write per second.
struct HostUpdateSpeeds {
  double in_place = 50e9;
  double speculative = 0;  // of speculative ones; 0: there are none

  /// Measured, or from the user's file.
  [[nodiscard]] static HostUpdateSpeeds of(UpdateKernel kernel, bool speculates);
};

/// A device and its host, as far as a placement depends on them.
struct PlacementHardware {
  PlacementSpeeds speeds;
  double compute_flops_per_s = 100e12;
  double latency_s = 3e-6;     // of a segment
  double memory_bytes = 16e9;  // of the device

  [[nodiscard]] static PlacementHardware of(const SimSpec& spec, const HostUpdateSpeeds& host);
};

/// Returns the times of a segment's visits with the plan's largest micro-batch.
[[nodiscard]] PlacementSegment placement_segment(const Model& model, const PlanInput& input,
                                                 const PlacementHardware& hardware, std::size_t s);

/// Returns the solver's problem for a step of the model. Device memory that slots and whole blocks
/// do not take counts as free; host memory is not limited.
[[nodiscard]] PlacementProblem placement_problem(const Model& model, const PlanInput& input,
                                                 const PlacementHardware& hardware,
                                                 Overlap overlap);

/// Limits the problem's memory to what a run of this plan leaves free with its state on the host.
void bound_memory(PlacementProblem& problem, const Model& model, const PlanInput& input,
                  const MemoryLimits& limits);

/// Return the update kernel of a run of that plan, and its speeds on the pool.
[[nodiscard]] UpdateKernel update_kernel_of(const PlanInput& input, int optimizer_threads);
[[nodiscard]] HostUpdateSpeeds host_update_speeds(const PlanInput& input, int optimizer_threads);

/// The result of --placement, --offload_ratio and the config.
struct PlannedPlacement {
  std::vector<StatePlacement> placements;  // [unit]
  // share of the optimizer's bytes that stays on the host, streamed ones included
  double host_ratio = 1;
  double step_s = 0;       // predicted
  double host_step_s = 0;  // predicted with all state there
  bool chosen = false;     // by the solver

  /// "embedding, block 0-3 on the device; ...: 62 % of the state on the host; a step of 81.2 ms
  /// predicted, ..."
  [[nodiscard]] std::string text(const Model& model) const;
};

/// Returns the user's placement if there is one (forced_placements()), else the solver's.
[[nodiscard]] PlannedPlacement plan_placement(const Model& model, const PlacementProblem& problem,
                                              Placement placement, std::optional<double> ratio);

}  // namespace tandem
