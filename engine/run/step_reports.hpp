// engine/run/step_reports.hpp — prints the lines of a config's wall_clock_breakdown, flops_profiler
// and comms_logger.
//
// The lines use figures that a step has anyway: nothing is synchronised for them, and no number of
// the training depends on them.
// Thread rule: the loop's thread.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/metrics/comms_summary.hpp"
#include "engine/metrics/flops_profile.hpp"
#include "engine/run/all_ranks.hpp"
#include "engine/run/reporting.hpp"
#include "engine/run/tensor_rank.hpp"

namespace tandem {

class StepReports {
 public:
  /// The arguments outlive this object. Makes the folder of flops_profiler.output_file.
  StepReports(const Config& config, const Communicator& communicator, TensorRank& tensors,
              const TrainStep& step, AllRanks& ranks);

  void report_by(Reporting reporting) { reporting_ = std::move(reporting); }
  /// Whether the config asks for any of these lines.
  [[nodiscard]] bool any() const noexcept {
    return config_.wall_clock_breakdown || config_.flops_profiler.enabled ||
           config_.comms_logger.enabled;
  }
  /// Prints the lines of a step that ran micro-batches of those extents; call it after the step,
  /// only if any().
  Task<> report(StepResult result, std::vector<BatchExtents> extents);
  /// Returns comms_logger's counts. With `compare` it also compares the times of all ranks, which
  /// is a collective. Between steps.
  Task<CommsSummary> comms_summary(bool compare);
  /// Prints `text` on rank 0; does nothing on other ranks.
  void say(std::string_view text) const;
  /// Returns the profile of step flops_profiler.profile_step; null before that step.
  [[nodiscard]] const FlopsProfile* flops_profile() const noexcept {
    return flops_profile_ ? &*flops_profile_ : nullptr;
  }

 private:
  void say_operations() const;
  Task<FlopsProfile> profile_of(StepResult result, std::vector<BatchExtents> extents);

  const Config& config_;
  const Communicator& communicator_;
  TensorRank& tensors_;
  const TrainStep& step_;
  AllRanks& ranks_;
  Reporting reporting_;
  std::optional<FlopsProfile> flops_profile_;
};

}  // namespace tandem
