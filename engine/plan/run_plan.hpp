// engine/plan/run_plan.hpp — decides a run's memory and where its optimizer state lies, before
// anything is allocated.
//
// Engine, the trainers and `tandem plan` all call plan_run(). State is placed by the first of these
// rules that applies:
//   1. placement nvme              a ratio's share stays on the host; without a ratio the first
//                                  units stay that a given limit of host memory holds
//      the CPU computes, and a folder on NVMe is given
//                                  the state that the host's free memory does not hold goes there,
//                                  and, with a ratio, all but its share
//   2. the CPU computes            all on the host
//   3. EngineOptions::placements   as given, unit by unit
//   4. a placement other than auto, or a ratio (of the options, else of the config)
//                                  units leave the host, from the first one on; that share stays
//   5. the config does not offload the optimizer, and the device has room for all state
//                                  all on the device, as DeepSpeed does
//   6. else                        the solver's: of the placements that fit, the shortest step
// With an accelerator and a folder on NVMe, state that rules 4 to 6 leave on the host and that does
// not fit there goes to the folder: neighbouring units, chosen by the predicted step.
// choose_offload() decides about boundaries. Collective: every rank calls it, and all use rank 0's
// measurements (free memory, speeds), so that they decide alike. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/memory/memory_check.hpp"
#include "engine/placement/placement_plan.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"
#include "engine/types/sim_spec.hpp"

namespace tandem {

/// Limits of a run that replace those of this machine.
struct RunLimits {
  MemoryLimits memory;                   // absent: the free memory here
  std::int64_t ranks_per_host = 0;       // 0: all ranks
  std::optional<SimSpec> device_speeds;  // absent: EngineOptions::sim, or measured on the GPU
  std::optional<HostUpdateSpeeds> host_updates;  // absent: measured on this host
  bool elsewhere = false;  // the plan is for another machine, or another process
};

/// The largest micro-batch that will come.
struct LargestBatch {
  std::int64_t records = 0;  // in all; 0: not known, then the config's micro-batch counts
  std::int64_t length = 1;   // tokens of the longest row; 1 without tokens
  bool packed = false;       // Dataset::packed()
};

struct RunPlan {
  // The caller's, with placements, activation_offload, units_ahead and speculate decided.
  EngineOptions options;
  FitReport report;
  MemoryLimits limits;
  std::string placement;   // "all on the host: the CPU computes", "blocks 0-3 on the device; ..."
  std::string nvme;        // traffic_text(), of the first rank; empty: nothing lies there
  std::string boundaries;  // activation_offload_text(); empty: all stay
  double predicted_step_s = 0;  // by the placement's model; 0: nothing was to be placed
  bool of_first_rank = true;

  [[nodiscard]] const MemoryPlan& memory() const noexcept { return report.plan; }
  /// Returns the line "placement all on the host ..."; if something lies on NVMe also "nvme ...",
  /// if boundaries are offloaded also "offload ...".
  [[nodiscard]] std::vector<std::string> placement_lines() const;
  [[nodiscard]] std::string placement_text() const;
  /// Throws DoesNotFit unless the run fits; only the first rank's error has the table.
  void require_fit() const { tandem::require_fit(report, limits, of_first_rank); }
};

/// Plans a run of config.world_size ranks. `ranks`: the ranks that plan; there may be fewer (one
/// process plans for many). Throws user_error for impossible options.
[[nodiscard]] RunPlan plan_run(const Model& model, const Config& config, const EngineOptions& asked,
                               const LargestBatch& batch, const RunLimits& limits,
                               Communicator& ranks);

/// Places state without a plan: by rules 1 to 4 alone, the rest on the host. Throws as plan_run().
[[nodiscard]] EngineOptions place_as_asked(const Model& model, const Config& config,
                                           EngineOptions options);

}  // namespace tandem
