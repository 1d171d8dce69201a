// examples/support/training_run.hpp — what the trainers' loops share: signals, a step's figures,
// the summary's last part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/config/config.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/memory/memory_plan.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/metrics/summary.hpp"
#include "engine/types/step_result.hpp"
#include "examples/support/run_flags.hpp"

namespace tandem {

/// From now on the first SIGINT or SIGTERM lets the running step finish; the second one kills, as
/// the default does.
void finish_on_signals();
/// The signal that came, 0: none.
int stop_signal();

/// The loader's next step. A signal at any rank asks all of them to stop: after this step
/// (StepResult::stop_asked), which is the same one everywhere.
std::optional<StepResult> train_step_or_stop(Engine& engine);

/// "runs/NAME-<time>", for runs without --output_dir.
std::string fresh_output_dir(std::string_view name);

/// What the engine knows of a step. `tflops` as the example counts them. Peak memory is asked for
/// anew every hundredth step where steps are short: the question takes as long as a layer of a
/// small model.
StepMetrics metrics_of(const StepResult& result, double epoch, double tflops);

struct PlannedRun {
  MemoryPlan plan;
  std::string json;       // the whole table, for memory_plan.json
  std::string placement;  // "placement embedding on the device; ..."
};
/// The largest micro-batch that a data set makes.
struct LargestBatch {
  std::int64_t records = 0;  // of the data set
  std::int64_t length = 1;   // tokens of the longest; 1 without tokens
};
/// The memory that a run will need, before anything of it is allocated or written. Throws
/// Error(kRefused) when it does not fit; the first rank prints the table. What the options leave to
/// choose (how many units have shadows) is as planned then.
PlannedRun plan_run(const Model& model, const Config& config, EngineOptions& options,
                    Communicator& ranks, const LargestBatch& batch, const RunFlags& flags);
/// output_dir/memory_plan.json.
void write_plan(const PlannedRun& planned, const std::string& output_dir);
/// "memory   812.0 MiB in host memory predicted, ...".
std::string plan_line(const MemoryPlan& plan);

/// Fills in what the metrics writer cannot know. `model_tflops`: the model's work over the measured
/// time, recomputation left out.
void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, const MemoryPlan& plan);

}  // namespace tandem
