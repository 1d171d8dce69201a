// examples/support/training_run.hpp — what the trainers' loops share: signals, a step's figures, the summary's last part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/communicator.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/metrics/summary.hpp"
#include "engine/step_result.hpp"
#include "examples/support/run_flags.hpp"

namespace tandem {

/// From now on the first SIGINT or SIGTERM lets the running step finish; the second one kills, as the default does.
void finish_on_signals();
/// The signal that came, 0: none.
int stop_signal();

/// The loader's next step. A signal at any rank asks all of them to stop: after this step (StepResult::stop_asked), which
/// is the same one everywhere.
std::optional<StepResult> train_step_or_stop(Engine& engine);

/// "runs/NAME-<time>", for runs without --output_dir.
std::string fresh_output_dir(std::string_view name);

/// What the engine knows of a step. `tflops` as the example counts them. Peak memory is asked for anew every hundredth
/// step where steps are short: the question takes as long as a layer of a small model.
StepMetrics metrics_of(const StepResult& result, double epoch, double tflops);

/// Fills in what the metrics writer cannot know. `model_tflops`: the model's work over the measured time, recomputation
/// left out. `without_engine_bytes`: resident before the engine was made; predicted is that and the engine's buffers,
/// activations come on top.
void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, std::int64_t without_engine_bytes);

}  // namespace tandem
