#include "trainer/metrics/metrics_writer.hpp"

#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "actors/storage/file.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/folder/output_folder.hpp"
#include "trainer/program/program.hpp"
#include "trainer/report/run_report.hpp"

namespace tandem {
namespace {

std::string made(const std::string& output_dir) {
  make_output_dir(output_dir);
  return output_dir;
}

/// Under the example's names, so that its dashboards keep working, and ours beside them.
std::vector<Scalar> example_scalars(const StepMetrics& m) {
  constexpr double kMsPerS = 1000;
  return {{"train/loss", m.loss},
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
          {"memory/peak_device_bytes", static_cast<double>(m.peak_device_bytes)}};
}

}  // namespace

MetricsWriter::MetricsWriter(MetricsOptions options)
    : options_(std::move(options)),
      builder_(options_.warmup_steps),
      console_(options_.quiet ? ProgressMode::kOff : options_.progress, options_.total_steps,
               options_.log_interval) {
  if (options_.silent) {
    return;
  }
  jsonl_.emplace(made(options_.output_dir) + "/metrics.jsonl", options_.append);
  if (options_.tensorboard) {
    events_ = std::make_unique<EventWriter>(options_.output_dir);
  }
  monitors_ = open_monitors(options_.monitors, options_.output_dir, options_.append);
  if (options_.monitors.wandb.enabled) {
    open_wandb();
  }
}

void MetricsWriter::write(const StepMetrics& m) {
  builder_.add(m);
  last_ = m;
  const bool is_first = !std::exchange(begun_, true);
  if (is_first && !options_.append && options_.has_disk) {
    set_aside();
  }
  if (options_.silent) {
    return;
  }
  if (is_first) {
    (void)reach::remove(options_.output_dir + "/summary.json");  // there is none, as a rule
    report("notes.txt", [&] { write_file(options_.output_dir + "/notes.txt", "metrics", notes_); });
  }
  report("metrics.jsonl", [&] { jsonl_->append_line(json_line(m)); });
  write_scalars(m);
  console_.step(m);
  warn_of_unlabelled(m);
}

void MetricsWriter::warn_of_unlabelled(const StepMetrics& m) {
  if (m.micro_batches_unlabelled == 0 || std::exchange(warned_of_unlabelled_, true)) {
    return;
  }
  say(fmt::format(
      "warning  step {} has {} without a label: {}; summary.json counts them (said once)", m.step,
      m.micro_batches_unlabelled == 1 ? "a micro-batch"
                                      : fmt::format("{} micro-batches", m.micro_batches_unlabelled),
      m.unlabelled ? "nothing is learnt in it, and momentum and weight decay still move the weights"
                   : "such add nothing to the step's loss and gradient"));
}

void MetricsWriter::write_scalars(const StepMetrics& m) {
  std::vector<Scalar> scalars;
  if (events_ || wandb_) {
    scalars = example_scalars(m);
  }
  if (events_) {
    report("events", [&] { events_->write(m.step, scalars); });
  }
  if (monitors_.empty() && !wandb_) {
    return;
  }
  const std::int64_t samples = m.step * options_.samples_per_step;
  const std::vector<Scalar> monitored =
      deepspeed_scalars(m, options_.scales_loss, options_.wall_clock_breakdown);
  for (const std::unique_ptr<ScalarMonitor>& monitor : monitors_) {
    report(std::string(monitor->name()), [&] { monitor->write(samples, monitored); });
  }
  if (wandb_) {
    scalars.insert(scalars.end(), monitored.begin(), monitored.end());
    report("wandb", [&] { wandb_->write(options_.wandb_over_steps ? m.step : samples, scalars); });
  }
}

void MetricsWriter::set_aside() {
  const std::string own = events_ ? std::filesystem::path(events_->path()).filename().string() : "";
  try {
    if (const auto aside = set_aside_earlier_run(options_.output_dir, !options_.silent, own)) {
      note(fmt::format("earlier  what an earlier run left in {} is in {}", options_.output_dir,
                       aside->string()));
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw failure(ExitCode::kFailure, "output",
                  "cannot move what an earlier run left in {}: {}; "
                  "move it away, or give another output folder",
                  options_.output_dir, error.what());
  }
}

void MetricsWriter::open_wandb() {
  report("wandb", [&] {
    wandb_ = std::make_unique<WandbFeed>(options_.monitors.wandb,
                                         WandbRun{.folder = options_.output_dir,
                                                  .append = options_.append,
                                                  .name = options_.wandb_name,
                                                  .tags = options_.wandb_tags,
                                                  .config_json = options_.config_json});
  });
}

void MetricsWriter::write_evaluation(std::int64_t step, const EvalSums& sums) {
  if (options_.silent) {
    return;
  }
  report("metrics.jsonl", [&] { jsonl_->append_line(json_line(step, sums)); });
  const std::vector<Scalar> scalars = {{"eval/loss", sums.mean()},
                                       {"eval/perplexity", sums.perplexity()}};
  if (events_) {
    report("events", [&] { events_->write(step, scalars); });
  }
  if (wandb_) {
    const std::int64_t per_step = options_.wandb_over_steps ? 1 : options_.samples_per_step;
    report("wandb", [&] { wandb_->write(step * per_step, scalars); });
  }
}

void MetricsWriter::report(const std::string& what, const std::function<void()>& write) {
  try {
    write();
  } catch (const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error);
        known != nullptr && known->code() == ExitCode::kPeer) {
      throw;
    }
    if (lost_.insert(what).second && lost_.size() == 1) {
      warn(fmt::format("{} (the run goes on, and its exit code will be {})", error.what(),
                       static_cast<int>(ExitCode::kReportLost)));
    }
  }
}

std::string MetricsWriter::artefacts_line() const {
  std::string line = "artefacts in " + options_.output_dir;
  for (const std::string& what : lost_) {
    line += (what == *lost_.begin() ? "; lost: " : ", ") + what;
  }
  return line;
}

// A line quotes names of folders and files, and texts of foreign checkpoints.
void MetricsWriter::note(std::string_view line) {
  const std::string shown = one_line(line);
  if (!begun_ && !options_.silent) {
    notes_.append(shown) += '\n';
  }
  say(shown);
}

void MetricsWriter::warn(std::string_view line) {
  console_.finish();
  print_warning(line);
}

void MetricsWriter::say(std::string_view line) {
  if (!options_.silent && !options_.quiet) {
    console_.note(escaped_lines(line));
  }
}

void MetricsWriter::write_config(std::string_view json,
                                 const std::vector<std::string>& key_lines) const {
  if (options_.silent) {
    return;
  }
  write_file(options_.output_dir + "/resolved_config.json", "metrics", json);
  write_file(options_.output_dir + "/config_keys.txt", "metrics",
             fmt::format("{}\n", fmt::join(key_lines, "\n")));
}

void MetricsWriter::write_page() {
  if (!options_.silent && begun_) {
    report("report.html",
           [&] { write_report({options_.output_dir}, options_.output_dir + "/report.html"); });
  }
}

void MetricsWriter::finish(const RunSummary& summary) {
  if (options_.silent) {
    return;
  }
  console_.finish();
  report("summary.json", [&] {
    make_output_dir(options_.output_dir);
    write_file(options_.output_dir + "/summary.json", "metrics", summary_json(summary));
  });
  report("metrics.jsonl", [&] { jsonl_->close(); });
  if (events_) {
    report("events", [&] { events_->close(); });
  }
  for (const std::unique_ptr<ScalarMonitor>& monitor : monitors_) {
    report(std::string(monitor->name()), [&] { monitor->close(); });
  }
  if (wandb_) {
    report("wandb", [&] { wandb_->close(); });
  }
}

}  // namespace tandem
