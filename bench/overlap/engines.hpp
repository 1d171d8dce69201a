// bench/overlap/engines.hpp — the engine on a simulated device whose segments only last, and runs
// of its steps.
#pragma once

#include <memory>
#include <vector>

#include "bench/overlap/layers.hpp"
#include "bench/overlap/policies.hpp"
#include "engine/engine.hpp"

namespace tandem::bench {

struct TimedEngineOptions {
  Overlap overlap = Overlap::kFull;
  double forced_misses = 0;
};

/// bf16, stage 2, gradient clipping; its memory has been touched by some steps. `times` may change
/// between steps.
std::unique_ptr<Engine> timed_engine(const StepShape& shape,
                                     const std::shared_ptr<const LayerTimes>& times,
                                     TimedEngineOptions options);

struct StepsOf {
  double seconds = 0;  // of all
  int missed = 0;      // verdicts that made updates again
  int speculated = 0;
  std::vector<Exposure> exposures;
};

/// One step that is not counted, since what follows is like what went before, then `count` in a
/// row, then the rest of the last one's updates, not counted either.
StepsOf run_steps(Engine& engine, int count);

}  // namespace tandem::bench
