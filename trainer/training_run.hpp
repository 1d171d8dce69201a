// trainer/training_run.hpp — shared code of the trainers' loops: the figures of a step, and the end
// of the summary.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/checkpoint/disks.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/metrics/summary.hpp"
#include "engine/plan/run_plan.hpp"
#include "engine/types/step_result.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/metrics/metrics_writer.hpp"
#include "trainer/program/resident_set.hpp"

namespace tandem {

/// Returns "runs/NAME-<time>", for runs without --output_dir.
std::string fresh_output_dir(std::string_view name);

/// Returns the file into which SIGQUIT writes what a rank waits for: output_dir/waits-rank0.txt.
std::string waits_file(const RunFlags& flags, int rank);

/// Returns the engine's figures of a step, with `tflops` as the example counts them. If steps are
/// short, peak memory is read only at every hundredth step: reading it takes as long as a layer of
/// a small model.
StepMetrics metrics_of(const StepResult& result, double epoch, double tflops);

/// Returns the options of a trainer's reports, except for the interval of its lines and the run's
/// length.
MetricsOptions metrics_options(const RunFlags& flags, const Engine& engine,
                               std::int64_t total_steps);

/// Makes the engine write the lines of comms_logger, flops_profiler and wall_clock_breakdown
/// through `metrics`, which outlives the steps.
void report_by(MetricsWriter& metrics, Engine& engine);
/// Prints comms_logger's table and writes the files of both blocks, at the end of training. A
/// collective.
void finish_reports(MetricsWriter& metrics, Engine& engine);

/// Returns the flags' limits for the memory of a run.
RunLimits run_limits(const RunFlags& flags);
/// Returns a line if the hosts do not share the output folder; else empty.
[[nodiscard]] std::string disks_line(const Disks& disks);

/// output_dir/memory_plan.json.
void write_plan(const RunPlan& plan, const std::string& output_dir);
/// "memory   planned for a rank: 812.0 MiB host, ...".
std::string memory_line(const MemoryPlan& plan);

/// Returns the planned and the actual bytes of a rank, by kind. With a GPU, pinned memory is part
/// of the process's memory, and one figure has both; no figure includes the GPU's context.
/// `device_bytes`: the engine's.
[[nodiscard]] std::map<std::string, MemoryFigure> memory_figures(const MemoryPlan& plan,
                                                                 DeviceKind device,
                                                                 const ResidentSet& held,
                                                                 std::int64_t device_bytes);

/// Fills in the figures that the metrics writer does not have. `model_tflops`: the model's work
/// over the measured time, recomputation left out.
void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, const MemoryPlan& plan);

}  // namespace tandem
