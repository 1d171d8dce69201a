// examples/support/training_run.hpp — what the trainers' loops share: a step's figures,
// the summary's last part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/metrics/summary.hpp"
#include "engine/plan/run_plan.hpp"
#include "engine/types/step_result.hpp"
#include "examples/support/run_flags.hpp"

namespace tandem {

/// "runs/NAME-<time>", for runs without --output_dir.
std::string fresh_output_dir(std::string_view name);

/// Where SIGQUIT leaves what a rank waits for: output_dir/waits-rank0.txt.
std::string waits_file(const RunFlags& flags, int rank);

/// What the engine knows of a step. `tflops` as the example counts them. Peak memory is asked for
/// anew every hundredth step where steps are short: the question takes as long as a layer of a
/// small model.
StepMetrics metrics_of(const StepResult& result, double epoch, double tflops);

/// What the flags say of the memory that a run may use.
RunLimits run_limits(const RunFlags& flags);
/// output_dir/memory_plan.json.
void write_plan(const RunPlan& plan, const std::string& output_dir);
/// "memory   planned for a rank: 812.0 MiB host, ...", and "placement all on the host ...".
std::string memory_line(const MemoryPlan& plan);
std::string placement_line(const RunPlan& plan);

/// Fills in what the metrics writer cannot know. `model_tflops`: the model's work over the measured
/// time, recomputation left out.
void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, const MemoryPlan& plan);

}  // namespace tandem
