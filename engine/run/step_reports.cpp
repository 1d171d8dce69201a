#include "engine/run/step_reports.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "engine/metrics/line_file.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/run/peak_matmul.hpp"

namespace tandem {
namespace {

/// Whether this step is one of those that get a line.
bool is_due(const Config& config, std::int64_t step) {
  const std::int64_t every = config.steps_per_print.value_or(1);
  return config.wall_clock_breakdown && every > 0 && step % every == 0;
}

std::array<CommsLog*, 2> logs_of(TensorRank& tensors) {
  return {tensors.rank().comms_log(), tensors.lane_comms_log()};
}

/// A number that differs where two ranks' rows do.
std::size_t signature_of(const CommsSummary& summary) {
  std::size_t signature = 0;
  for (const CommsRow& row : summary.rows) {
    signature = signature * 31 + std::hash<std::string>()(row.operation);
    signature = signature * 31 + static_cast<std::size_t>(row.block_bytes);
    signature = signature * 31 + static_cast<std::size_t>(row.count);
  }
  return signature;
}

}  // namespace

StepReports::StepReports(const Config& config, const Communicator& communicator,
                         TensorRank& tensors, const TrainStep& step, AllRanks& ranks)
    : config_(config), communicator_(communicator), tensors_(tensors), step_(step), ranks_(ranks) {
  const FlopsProfilerConfig& flops = config.flops_profiler;
  if (flops.enabled && !flops.output_file.empty()) {
    const auto folder = std::filesystem::absolute(flops.output_file).parent_path();
    make_output_dir(folder.string());
  }
}

void StepReports::say(std::string_view text) const {
  if (communicator_.rank() != 0) {
    return;
  }
  if (reporting_.say) {
    reporting_.say(text);
    return;
  }
  fmt::print(stdout, "{}\n", text);
  std::fflush(stdout);
}

void StepReports::say_operations() const {
  const Model& model = tensors_.rank().layout().model;
  for (CommsLog* log : logs_of(tensors_)) {
    if (log == nullptr) {
      continue;
    }
    const std::vector<CommsLog::Verbose> operations = log->take_verbose();
    for (const CommsLog::Verbose& operation : operations) {
      say(comms_line(operation, model));
    }
    if (!operations.empty() && log->verbose_is_full()) {
      say(fmt::format("comm op: {} were logged one by one; the rest is in log_summary()'s table",
                      CommsLog::kMostVerbose));
    }
  }
}

Task<> StepReports::report(StepResult result, std::vector<BatchExtents> extents) {
  say_operations();
  if (is_due(config_, result.step)) {
    say(micro_breakdown_line(result.last_micro_step));
    say(breakdown_line(result.phases));
  }
  const FlopsProfilerConfig& flops = config_.flops_profiler;
  if (!flops.enabled || result.step != std::max<std::int64_t>(1, flops.profile_step)) {
    co_return;
  }
  flops_profile_ = co_await profile_of(std::move(result), std::move(extents));
  const std::string text = flops_profile_text(*flops_profile_, flops);
  if (flops.output_file.empty()) {
    say(text.substr(0, text.find_last_not_of('\n') + 1));
  } else if (communicator_.rank() == 0) {
    try {
      write_file(flops.output_file, "flops_profiler", text);
    } catch (const std::exception& error) {
      say(fmt::format("{} (the run goes on)", error.what()));
    }
  }
}

Task<FlopsProfile> StepReports::profile_of(StepResult result, std::vector<BatchExtents> extents) {
  const Rank& rank = tensors_.rank();
  const EngineOptions& options = rank.options().shape.engine;
  std::vector<SegmentSeconds> seconds;
  for (std::size_t s = 0; s < rank.layout().model.segments.size(); ++s) {
    seconds.push_back({.forward = step_.visit_times().of(s, Phase::kForward),
                       .backward = step_.visit_times().of(s, Phase::kBackward)});
  }
  FlopsProfile profile{.step = result.step,
                       .world_size = communicator_.world_size(),
                       .data_ranks = config_.data_ranks(),
                       .micro_batch = config_.batch.micro_batch_size,
                       .sequences = result.sequences,
                       .model = profile_modules(rank.layout().model, extents, seconds,
                                                options.activation_checkpointing),
                       .phases = result.phases};
  if (options.device == DeviceKind::kSim) {
    profile.peak_tflops = options.sim.compute_flops_per_s * 1e-12;
  } else if (communicator_.rank() == 0) {  // whose profile is said; the others wait for it
    profile.peak_tflops = (co_await peak_matmul_rate(&tensors_, reporting_.matmul)).best_tflops;
  }
  co_return profile;
}

Task<CommsSummary> StepReports::comms_summary(bool compare) {
  const auto [of_loop, of_lane] = logs_of(tensors_);
  const std::array<const CommsLog*, 2> logs = {of_loop, of_lane};
  CommsSummary summary =
      summarise_comms(logs, tensors_.rank().layout().model, communicator_.world_size());
  if (!compare || !summary.enabled || communicator_.world_size() == 1) {
    co_return summary;
  }
  const std::vector<float> mine = latest_times(logs);
  CommsLog& log = *tensors_.rank().comms_log();
  log.set_counting(false);
  // The rows that are exchanged must be equally many on all ranks.
  const std::size_t own = signature_of(summary);
  const std::vector<std::size_t> of_ranks = co_await ranks_.values(std::vector{own});
  if (std::ranges::all_of(of_ranks, [own](std::size_t other) { return other == own; })) {
    const std::vector<float> all = co_await ranks_.values(mine);
    compare_stragglers(summary, mine, all);
  }
  log.set_counting(true);
  co_return summary;
}

}  // namespace tandem
