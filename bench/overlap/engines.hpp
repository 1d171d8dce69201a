// bench/overlap/engines.hpp — the engine on a device, by default a simulated one, with segments
// that only last; runs of its steps; the pace of a device that is not simulated.
#pragma once

#include <memory>
#include <vector>

#include "bench/overlap/layers.hpp"
#include "bench/overlap/policies.hpp"
#include "engine/engine.hpp"
#include "engine/placement/placement_plan.hpp"

namespace tandem::bench {

struct TimedEngineOptions {
  DeviceKind device = DeviceKind::kSim;
  Overlap overlap = Overlap::kFull;
  double forced_misses = 0;
  std::vector<StatePlacement> placements;  // of the layers; none: all state on the host
};

/// bf16, stage 2, gradient clipping; its memory has been touched by some steps. `times` may change
/// between steps.
std::unique_ptr<Engine> timed_engine(const StepShape& shape,
                                     const std::shared_ptr<const LayerTimes>& times,
                                     TimedEngineOptions options);

/// The kernel that updates the layers on the pool.
UpdateKernel layers_kernel(const StepShape& shape);

/// Its speed, as measured now.
HostUpdateSpeeds pool_speeds(const StepShape& shape);

/// The problem that the solver gets under `--placement auto`: layers as `times` say, device memory
/// for the state of `room` layers and for what others stream through.
PlacementProblem timed_problem(const StepShape& shape,
                               const std::shared_ptr<const LayerTimes>& times,
                               const SimSpec& device, const HostUpdateSpeeds& pool, double room);

struct StepsOf {
  double seconds = 0;  // of all
  int missed = 0;      // verdicts that made updates again
  int speculated = 0;
  std::vector<Exposure> exposures;
};

/// One step that is not counted, since what follows is like what went before, then `count` in a
/// row, then the rest of the last one's updates, not counted either.
StepsOf run_steps(Engine& engine, int count);

/// The times of a device that is not simulated, with no optimizer beside it.
struct DevicePace {
  double matmul_s = 0;  // one of the layers'
  double link_s = 0;    // all weights to the device, once
};

/// By evaluations: without matmuls they are the gathers of the weights, and of two with many the
/// difference is matmuls alone. Leaves `times` without matmuls.
DevicePace pace_of(Engine& engine, const StepShape& shape, LayerTimes& times);

}  // namespace tandem::bench
