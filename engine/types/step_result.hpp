// engine/types/step_result.hpp — the results of a step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/types/checkpoint.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

/// The verdict on a step's gradients.
enum class StepOutcome : std::uint8_t {
  kCommit,    // applied
  kRollback,  // applied after an update made ahead of the verdict was undone
  kSkip,      // a gradient was not finite: nothing changed
};

template <>
inline constexpr auto kEnumNames<StepOutcome> =
    std::array{EnumName{StepOutcome::kCommit, "commit"},
               EnumName{StepOutcome::kRollback, "rollback"}, EnumName{StepOutcome::kSkip, "skip"}};

/// The global L2 norm before clipping, or the first parameter with an element that is not finite.
struct GlobalNorm {
  double value = 0;
  std::string bad_parameter;  // empty: all finite

  [[nodiscard]] bool finite() const noexcept { return bad_parameter.empty(); }
};

struct Verdict {
  StepOutcome outcome = StepOutcome::kCommit;
  GlobalNorm norm;
  bool speculated = false;  // updates had begun ahead of it
};

/// Seconds for which the compute lane waited, by the kind of wait, and seconds for which
/// each resource worked in the step.
struct Exposure {
  double optimizer_s = 0;
  double gather_s = 0;
  double reduce_s = 0;
  double data_s = 0;
  double activation_s = 0;  // for boundaries on their way from and to the device or the disk
  double checkpoint_s = 0;  // for a save that still read what an update was to change
  double disk_s = 0;        // of optimizer_s, for units whose state lies on NVMe
  double compute_busy_s = 0;
  double optimizer_busy_s = 0;  // of the busiest reading: pool time over its threads
  double copy_busy_s = 0;
  double to_device_busy_s = 0;  // of the links between host and device
  double to_host_busy_s = 0;
  double disk_busy_s = 0;  // something was on its way from or to NVMe
};

/// Seconds of a step's phases, divided as DeepSpeed's timers do. On a GPU, forward and backward are
/// the device's time.
struct PhaseTimes {
  double forward_s = 0;
  double backward_s = 0;   // with:
  double allreduce_s = 0;  // the compute lane waited for reductions, and ranks exchanged losses
  double step_s = 0;       // verdict, and updates that the step waited for

  [[nodiscard]] double backward_inner_s() const noexcept { return backward_s - allreduce_s; }
};

struct StepResult {
  std::int64_t step = 0;  // 1-based global step
  double loss = 0;        // mean over all ranks and micro-batches
  double learning_rate = 0;
  double loss_scale = 1;  // of this step's gradients
  Verdict verdict;
  std::int64_t tokens = 0;  // without padding where the loader knows it, all ranks
  std::int64_t sequences = 0;
  std::int64_t micro_batches = 0;             // of all ranks
  std::int64_t micro_batches_unlabelled = 0;  // of these, without a label: they count as loss 0
  std::int64_t sequence_length = 0;           // of the longest micro-batch, padding included
  bool stop_asked = false;                    // by any rank, before it finished this step
  bool save_asked = false;                    // likewise
  double step_time_s = 0;
  double overlap_efficiency = 0;  // T*/T: busy time of the busiest resource over wall time
  Exposure exposure;
  PhaseTimes phases;                            // of all micro-steps
  PhaseTimes last_micro_step;                   // of the last one, with all of step_s
  std::optional<CheckpointOutcome> checkpoint;  // of a save that ended with this step
  std::int64_t peak_device_bytes = 0;           // of this rank's device, so far
};

}  // namespace tandem
