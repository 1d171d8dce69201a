// engine/metrics/monitors.hpp — writes the scalars of each step as a DeepSpeed config's
// `tensorboard` and `csv_monitor` ask: with DeepSpeed's tags, by the number of trained samples.
//
// Invariant: the files contain only whole records. An earlier run's files in a monitor's folder
// stay until the first write, which moves them to earlier-N/ unless the run is resumed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/monitor_config.hpp"
#include "engine/metrics/event_writer.hpp"
#include "engine/metrics/step_metrics.hpp"

namespace tandem {

/// A monitor of one rank, which calls it from one thread.
class ScalarMonitor {
 public:
  virtual ~ScalarMonitor() = default;
  /// The config's block, for messages.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// `samples`: trained so far, by all ranks. Throws Error if the write fails.
  virtual void write(std::int64_t samples, const std::vector<Scalar>& scalars) = 0;
  virtual void close() = 0;
};

/// Opens the enabled monitors and makes their folders; `run_folder` replaces an empty output_path.
/// Throws user_error if a folder cannot be written. `append`: the run is resumed.
[[nodiscard]] std::vector<std::unique_ptr<ScalarMonitor>> open_monitors(
    const MonitorConfig& config, const std::string& run_folder, bool append);

/// Returns Train/Samples/train_loss, lr and, if the loss is scaled, loss_scale; with
/// wall_clock_breakdown also the timers elapsed_time_ms_forward, _backward, ...
[[nodiscard]] std::vector<Scalar> deepspeed_scalars(const StepMetrics& metrics, bool scales_loss,
                                                    bool wall_clock_breakdown = false);

/// Removes the records after `last_sample` from the monitors' files, for a run that resumes there.
void cut_monitors(const MonitorConfig& config, const std::string& run_folder,
                  std::int64_t last_sample);

}  // namespace tandem
