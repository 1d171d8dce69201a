// engine/metrics/monitors.hpp — the scalars of each step where a DeepSpeed config's blocks
// `tensorboard` and `csv_monitor` want them: under DeepSpeed's tags, over the samples trained.
//
// Invariant: the files hold whole records at any moment. Files that an earlier run left in a
// monitor's folder stay until the first write, and move to earlier-N/ with it, unless a run is
// resumed.
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
  /// `samples`: trained so far, by all ranks. Throws Error when the disk does not take it.
  virtual void write(std::int64_t samples, const std::vector<Scalar>& scalars) = 0;
  virtual void close() = 0;
};

/// Those that are enabled. `run_folder` stands for an output_path that is empty. Makes their
/// folders; throws user_error where they cannot be written. `append`: the run is resumed.
[[nodiscard]] std::vector<std::unique_ptr<ScalarMonitor>> open_monitors(
    const MonitorConfig& config, const std::string& run_folder, bool append);

/// Train/Samples/train_loss, lr and, where the loss is scaled, loss_scale; with
/// wall_clock_breakdown the timers, elapsed_time_ms_forward, _backward, ...
[[nodiscard]] std::vector<Scalar> deepspeed_scalars(const StepMetrics& metrics, bool scales_loss,
                                                    bool wall_clock_breakdown = false);

/// Cuts the monitors' files behind `last_sample`, for a run that is resumed there.
void cut_monitors(const MonitorConfig& config, const std::string& run_folder,
                  std::int64_t last_sample);

}  // namespace tandem
