// engine/metrics/flops_profile.hpp — the report of DeepSpeed's flops_profiler for a step: summary,
// largest modules of each depth, tree.
//
// Layout and units are DeepSpeed's, with one more figure: the share of the measured peak.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/monitor_config.hpp"
#include "engine/metrics/module_profile.hpp"
#include "engine/types/step_result.hpp"

namespace tandem {

/// The profile of one rank.
struct FlopsProfile {
  std::int64_t step = 0;
  std::int64_t world_size = 1;
  std::int64_t data_ranks = 1;   // ranks, or groups of ranks that share rows
  std::int64_t micro_batch = 0;  // records
  std::int64_t sequences = 0;    // of the step, all ranks
  ModuleProfile model;
  PhaseTimes phases;
  double peak_tflops = 0;  // of a rank's device; 0: not known

  [[nodiscard]] double step_flops() const noexcept {
    return model.forward_flops + model.backward_flops;
  }
};

[[nodiscard]] std::string flops_profile_text(const FlopsProfile& profile,
                                             const FlopsProfilerConfig& config);
/// flops_profile.json: the figures above, and "model": {"name", "parameters", "forward_flops", ...,
/// "parts": [...]}.
[[nodiscard]] std::string flops_profile_json(const FlopsProfile& profile);

}  // namespace tandem
