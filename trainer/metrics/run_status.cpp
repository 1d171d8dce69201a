#include "trainer/metrics/run_status.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/status_server.hpp"
#include "runtime/util/json_writer.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {

std::string prometheus_text(const StepMetrics& m, const RunProgress& progress) {
  struct Gauge {
    const char* name;
    const char* help;
    double value;
  };
  const std::array gauges = {
      Gauge{"step", "Optimizer steps done", static_cast<double>(m.step)},
      Gauge{"steps", "Optimizer steps of the run, 0 where unknown",
            static_cast<double>(progress.total_steps)},
      Gauge{"epoch", "Epochs done", m.epoch},
      Gauge{"loss", "Mean over all ranks and micro-batches of the last step", m.loss},
      Gauge{"learning_rate", "Of the last step", m.lr},
      Gauge{"grad_norm", "Global norm before clipping", m.grad_norm},
      Gauge{"loss_scale", "Of the last step", m.loss_scale},
      Gauge{"step_time_seconds", "Wall time of the last step", m.step_time_s},
      Gauge{"tokens_per_second", "Of the last step, all ranks", m.tokens_per_s},
      Gauge{"busy_ratio", "Share of the step in which the busiest resource worked",
            m.overlap_efficiency},
      Gauge{"exposed_optimizer_seconds", "Compute waited for updates", m.exposed_optimizer_s},
      Gauge{"exposed_gather_seconds", "Compute waited for weights", m.exposed_gather_s},
      Gauge{"exposed_reduce_seconds", "Compute waited for reductions", m.exposed_reduce_s},
      Gauge{"exposed_data_seconds", "Compute waited for data", m.exposed_data_s},
      Gauge{"exposed_checkpoint_seconds", "Compute waited for a save", m.exposed_checkpoint_s},
      Gauge{"exposed_disk_seconds", "Compute waited for what lies on NVMe", m.exposed_disk_s},
      Gauge{"exposed_activation_seconds", "Compute waited for boundaries", m.exposed_activation_s},
      Gauge{"peak_host_bytes", "Most that rank 0 had resident",
            static_cast<double>(m.peak_host_bytes)},
      Gauge{"peak_device_bytes", "Most that rank 0's device had resident",
            static_cast<double>(m.peak_device_bytes)},
      Gauge{"elapsed_seconds", "Since the run's first line", progress.elapsed_s},
  };
  std::string text;
  for (const Gauge& gauge : gauges) {
    text += fmt::format("# HELP tandem_{0} {1}\n# TYPE tandem_{0} gauge\ntandem_{0} {2}\n",
                        gauge.name, gauge.help, gauge.value);
  }
  return text;
}

std::string step_json(const StepMetrics& m, const RunProgress& progress) {
  JsonWriter json;
  json.begin_object().field("steps", progress.total_steps);
  const double left_s = remaining_s(progress);
  json.field("elapsed_s", progress.elapsed_s).key("eta_s");
  progress.total_steps > 0 && left_s >= 0 ? json.value(left_s) : json.value(nullptr);
  json.key("last").raw(m.step > 0 ? json_line(m) : "null");
  return json.end_object().take();
}

std::unique_ptr<StatusServer> serve_status(EventLoop& loop, std::string address,
                                           MetricsWriter& metrics, int rank) {
  if (address.empty() || rank != 0) {
    return nullptr;
  }
  if (address == "auto") {
    address = metrics.output_dir() + "/status.sock";
  }
  auto server = std::make_unique<StatusServer>(
      loop, address,
      std::map<std::string, StatusPage>{
          {"/metrics",
           {"text/plain; version=0.0.4",
            [&metrics] { return prometheus_text(metrics.last(), metrics.progress()); }}},
          {"/step",
           {"application/json",
            [&metrics] { return step_json(metrics.last(), metrics.progress()) + "\n"; }}},
          {"/actors", {"application/json", [&loop] { return tasks_json(loop) + "\n"; }}}});
  metrics.note(fmt::format("status   /metrics, /step and /actors at {}", server->address()));
  return server;
}

}  // namespace tandem
