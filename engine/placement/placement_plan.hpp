// engine/placement/placement_plan.hpp — the placement of a run: model, sizes and speeds as a
// problem for the solver, and the answer in a line.
//
// Pure but for what measures speeds (bandwidths.hpp). Any thread.
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
  double speculative = 0;  // of those that begin before the verdict; 0: there are none

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

/// How long a segment's visits take, of a plan's largest micro-batch.
[[nodiscard]] PlacementSegment placement_segment(const Model& model, const PlanInput& input,
                                                 const PlacementHardware& hardware, std::size_t s);

/// A step of the model as the solver sees it. All of the device's memory is free that slots and
/// whole blocks do not take; the host's is enough.
[[nodiscard]] PlacementProblem placement_problem(const Model& model, const PlanInput& input,
                                                 const PlacementHardware& hardware,
                                                 Overlap overlap);

/// Bounds the memory to what is free beside all that a run of this plan has there with its state
/// on the host.
void bound_memory(PlacementProblem& problem, const Model& model, const PlanInput& input,
                  const MemoryLimits& limits);

/// The kernel that updates in a run of that plan, and its speeds on the pool.
[[nodiscard]] UpdateKernel update_kernel_of(const PlanInput& input, int optimizer_threads);
[[nodiscard]] HostUpdateSpeeds host_update_speeds(const PlanInput& input, int optimizer_threads);

/// The result of --placement, --offload_ratio and the config.
struct PlannedPlacement {
  std::vector<StatePlacement> placements;  // [unit]
  // share of the optimizer's bytes that stays on the host, streamed ones included
  double host_ratio = 1;
  double step_s = 0;       // predicted
  double host_step_s = 0;  // with all of it there
  bool chosen = false;     // by the solver

  /// "embedding, block 0-3 on the device; ...: 62 % of the state on the host; a step of 81.2 ms
  /// predicted, ..."
  [[nodiscard]] std::string text(const Model& model) const;
};

/// By the user's words where there are any (forced_placements), else by the solver.
[[nodiscard]] PlannedPlacement plan_placement(const Model& model, const PlacementProblem& problem,
                                              Placement placement, std::optional<double> ratio);

}  // namespace tandem
