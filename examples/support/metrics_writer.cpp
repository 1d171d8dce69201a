#include "examples/support/metrics_writer.hpp"

#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/storage/file.hpp"
#include "examples/support/program.hpp"
#include "examples/support/report/run_report.hpp"
#include "runtime/util/error.hpp"

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
      console_(options_.quiet ? ProgressMode::kOff : options_.progress, options_.total_steps,
               options_.log_interval) {
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
  if (!std::exchange(begun_, true)) {
    if (!options_.append) {
      report("the earlier run's files", [&] { set_aside_earlier_run(); });
    }
    std::error_code ignored;  // there is none, as a rule
    std::filesystem::remove(options_.output_dir + "/summary.json", ignored);
    report("notes.txt", [&] { write_file(options_.output_dir + "/notes.txt", "metrics", notes_); });
  }
  report("metrics.jsonl", [&] { jsonl_->append_line(json_line(m)); });
  if (events_) {
    report("events", [&] { write_events(m); });
  }
  console_.step(m);
}

void MetricsWriter::set_aside_earlier_run() {
  namespace fs = std::filesystem;
  const fs::path folder = options_.output_dir;
  std::vector<fs::path> earlier;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_own = events_ && fs::path(events_->path()).filename() == name;
    const bool is_metrics = name == "metrics.jsonl" && fs::file_size(entry.path()) > 0;
    if (!is_own && (is_metrics || name == "summary.json" || name == "report.html" ||
                    name.starts_with("events.out.tfevents."))) {
      earlier.push_back(entry.path());
    }
  }
  if (earlier.empty()) {
    return;
  }
  int number = 1;
  while (fs::exists(folder / fmt::format("earlier-{}", number))) {
    ++number;
  }
  const fs::path aside = folder / fmt::format("earlier-{}", number);
  fs::create_directory(aside);
  for (const fs::path& path : earlier) {
    if (path.filename() == "metrics.jsonl") {  // which is open, and begins anew
      fs::copy_file(path, aside / path.filename());
    } else {
      fs::rename(path, aside / path.filename());
    }
  }
  note(fmt::format("earlier  what an earlier run left in {} is in {}", options_.output_dir,
                   aside.string()));
}

void MetricsWriter::write_evaluation(std::int64_t step, const EvalSums& sums) {
  if (options_.silent) {
    return;
  }
  report("metrics.jsonl", [&] { jsonl_->append_line(json_line(step, sums)); });
  if (events_) {
    report("events", [&] {
      events_->write(step, {{"eval/loss", sums.mean()}, {"eval/perplexity", sums.perplexity()}});
    });
  }
}

void MetricsWriter::write_events(const StepMetrics& m) {
  constexpr double kMsPerS = 1000;
  // The example's names, so that its dashboards keep working, and ours beside them.
  events_->write(m.step, {{"train/loss", m.loss},
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

void MetricsWriter::report(const std::string& what, const std::function<void()>& write) {
  try {
    write();
  } catch (const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error);
        known != nullptr && known->code() == ExitCode::kPeer) {
      throw;
    }
    if (lost_.insert(what).second && lost_.size() == 1) {
      console_.finish();
      print_warning(fmt::format("{} (the run goes on, and its exit code will be 1)", error.what()));
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

void MetricsWriter::note(std::string_view line) {
  if (!begun_ && !options_.silent) {
    notes_.append(line) += '\n';
  }
  if (!options_.silent && !options_.quiet) {
    console_.note(line);
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
}

}  // namespace tandem
