#include "examples/support/metrics_writer.hpp"

#include <utility>

#include "actors/storage/file.hpp"

namespace tandem {
namespace {

std::string made(const std::string& output_dir) {
  make_output_dir(output_dir);
  return output_dir;
}

}  // namespace

MetricsWriter::MetricsWriter(MetricsOptions options)
    : options_(std::move(options)),
      builder_(options_.warmup_steps),
      console_(options_.progress, options_.total_steps, options_.log_interval) {
  if (options_.silent) {
    return;
  }
  jsonl_.emplace(made(options_.output_dir) + "/metrics.jsonl", options_.append);
  if (options_.tensorboard) {
    events_ = std::make_unique<EventWriter>(options_.output_dir);
  }
}

void MetricsWriter::write(const StepMetrics& m) {
  builder_.add(m);
  if (options_.silent) {
    return;
  }
  jsonl_->append_line(json_line(m));
  if (events_) {
    constexpr double kMsPerS = 1000;
    // The example's names, so that its dashboards keep working, and ours beside them.
    events_->write(m.step,
                   {{"train/loss", m.loss},
                    {"train/epoch", m.epoch},
                    {"train/global_step", static_cast<double>(m.step)},
                    {"train/learning_rate", m.lr},
                    {"train/grad_norm", m.grad_norm},
                    {"train/loss_scale", m.loss_scale},
                    {"perf/step_time_ms", m.step_time_s * kMsPerS},
                    {"perf/tokens_per_second", m.tokens_per_s},
                    {"perf/tflops", m.tflops},
                    {"perf/overlap_efficiency", m.overlap_efficiency},
                    {"perf/exposed_optimizer_ms", m.exposed_optimizer_s * kMsPerS},
                    {"memory/peak_host_bytes", static_cast<double>(m.peak_host_bytes)},
                    {"memory/peak_device_bytes", static_cast<double>(m.peak_device_bytes)}});
  }
  console_.step(m);
}

void MetricsWriter::note(std::string_view line) {
  if (!options_.silent) {
    console_.note(line);
  }
}

void MetricsWriter::write_resolved_config(std::string_view json) const {
  if (options_.silent) {
    return;
  }
  write_file(options_.output_dir + "/resolved_config.json", "metrics", json);
}

void MetricsWriter::finish(const RunSummary& summary) {
  if (options_.silent) {
    return;
  }
  console_.finish();
  write_file(options_.output_dir + "/summary.json", "metrics", summary_json(summary));
}

}  // namespace tandem
