// engine/metrics/step_metrics.hpp — the figures of one optimizer step, and their two text forms.
#pragma once

#include <cstdint>
#include <string>

#include "engine/types/evaluation.hpp"
#include "engine/types/step_result.hpp"

namespace tandem {

/// One line of metrics.jsonl; field names are the file's names. Times are seconds of wall time.
struct StepMetrics {
  std::int64_t step = 0;  // 1-based optimizer step
  double epoch = 0;
  double loss = 0;  // mean over all ranks and micro-batches of the step
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double loss_scale = 1;
  std::int64_t tokens = 0;  // all ranks
  // Not in the file, but in the summary.
  std::int64_t micro_batches_unlabelled = 0;
  bool unlabelled = false;  // none of its micro-batches has a label
  double step_time_s = 0;
  double tokens_per_s = 0;
  double tflops = 0;              // the DeepSpeed example's formula (flops.hpp)
  double overlap_efficiency = 0;  // T*/T
  double optimizer_s = 0;         // the pool worked; of that the compute lane waited for:
  double exposed_optimizer_s = 0;
  double exposed_gather_s = 0;
  double exposed_reduce_s = 0;
  double exposed_data_s = 0;
  double exposed_checkpoint_s = 0;
  double exposed_disk_s = 0;
  double exposed_activation_s = 0;
  double disk_busy_s = 0;          // something was on its way from or to NVMe
  std::string verdict = "commit";  // commit | rollback | skip
  bool speculated = false;         // updates had begun ahead of the verdict
  std::int64_t peak_host_bytes = 0;
  std::int64_t peak_device_bytes = 0;
  PhaseTimes phases;  // not in the file: wall_clock_breakdown's
};

/// One flat JSON object, no newline; floats in shortest round-trip form, NaN and infinities as
/// strings (json_writer.hpp).
[[nodiscard]] std::string json_line(const StepMetrics& metrics);
/// Returns the line of an evaluation after that step.
[[nodiscard]] std::string json_line(std::int64_t step, const EvalSums& sums);

/// `Step 12 | Loss: 2.3456 | Time: 123ms | TFLOPS: 0.45 | Tokens/s: 12345` and then learning rate,
/// gradient norm, the share of time for which the busiest resource worked and, if it is not
/// "commit", the verdict. No newline.
[[nodiscard]] std::string console_line(const StepMetrics& metrics);

/// Return DeepSpeed's lines of wall_clock_breakdown: for the last micro-step, and for all
/// micro-steps of a step. `[Rank 0] time (ms) | fwd: 1.20 | bwd: 2.50 | bwd_inner: 2.40 |
/// bwd_allreduce: 0.10 | step: 0.30`
[[nodiscard]] std::string micro_breakdown_line(const PhaseTimes& micro_step);
[[nodiscard]] std::string breakdown_line(const PhaseTimes& step);

}  // namespace tandem
