// engine/engine_reports.cpp — what a config's wall_clock_breakdown, flops_profiler and comms_logger
// have the engine say.
//
// All of it comes from figures that the step has anyway; nothing is synchronised for it, and no
// number of the training depends on it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "engine/engine_impl.hpp"
#include "engine/metrics/line_file.hpp"
#include "engine/metrics/step_metrics.hpp"

namespace tandem {
namespace {

/// Whether this step is one of those that get a line.
bool is_due(const Config& config, std::int64_t step) {
  const std::int64_t every = config.steps_per_print.value_or(1);
  return config.wall_clock_breakdown && every > 0 && step % every == 0;
}

std::array<const CommsLog*, 2> logs_of(TensorRank& tensors) {
  return {tensors.rank().comms_log(), tensors.lane_comms_log()};
}

}  // namespace

void Engine::Impl::check_reports() const {
  const FlopsProfilerConfig& flops = config.flops_profiler;
  if (flops.enabled && !flops.output_file.empty()) {
    const auto folder = std::filesystem::absolute(flops.output_file).parent_path();
    make_output_dir(folder.string());
  }
}

void Engine::Impl::say(std::string_view text) const {
  if (communicator->rank() != 0) {
    return;
  }
  if (reporting.say) {
    reporting.say(text);
    return;
  }
  fmt::print(stdout, "{}\n", text);
  std::fflush(stdout);
}

void Engine::Impl::measure_phases(StepResult& result, double finish_s, double reduce_s) {
  result.phases = phases_;
  result.last_micro_step = last_micro_step_;
  for (PhaseTimes* times : {&result.phases, &result.last_micro_step}) {
    times->allreduce_s += reduce_s;
    times->backward_s += reduce_s;
    times->step_s = finish_s - reduce_s;
  }
  if (!rank.compute().on_gpu()) {
    return;
  }
  // The loop's thread has only queued the work: the device's time is what it took.
  PhaseTimes& all = result.phases;
  all.forward_s = step.visit_times().all(Phase::kForward);
  all.backward_s = step.visit_times().all(Phase::kBackward) + all.allreduce_s;
  all.step_s = std::max(0.0, result.step_time_s - all.forward_s - all.backward_s);
  const auto micro_steps = static_cast<double>(step_micro_batches);
  result.last_micro_step = {.forward_s = all.forward_s / micro_steps,
                            .backward_s = all.backward_s / micro_steps,
                            .allreduce_s = all.allreduce_s / micro_steps,
                            .step_s = all.step_s};
}

Task<> Engine::Impl::report(StepResult result) {
  for (CommsLog* log : {rank.comms_log(), tensors.lane_comms_log()}) {
    if (log == nullptr) {
      continue;
    }
    const std::vector<CommsLog::Verbose> operations = log->take_verbose();
    for (const CommsLog::Verbose& operation : operations) {
      say(comms_line(operation, rank.layout().model));
    }
    if (!operations.empty() && log->verbose_is_full()) {
      say(fmt::format("comm op: {} were logged one by one; the rest is in log_summary()'s table",
                      CommsLog::kMostVerbose));
    }
  }
  if (is_due(config, result.step)) {
    say(micro_breakdown_line(result.last_micro_step));
    say(breakdown_line(result.phases));
  }
  const FlopsProfilerConfig& flops = config.flops_profiler;
  if (!flops.enabled || result.step != std::max<std::int64_t>(1, flops.profile_step)) {
    co_return;
  }
  flops_profile = co_await profile_of(std::move(result));
  const std::string text = flops_profile_text(*flops_profile, flops);
  if (flops.output_file.empty()) {
    say(text.substr(0, text.find_last_not_of('\n') + 1));
  } else if (communicator->rank() == 0) {
    try {
      write_file(flops.output_file, "flops_profiler", text);
    } catch (const std::exception& error) {
      say(fmt::format("{} (the run goes on)", error.what()));
    }
  }
}

Task<FlopsProfile> Engine::Impl::profile_of(StepResult result) {
  const EngineOptions& options = rank.options().shape.engine;
  std::vector<SegmentSeconds> seconds;
  for (std::size_t s = 0; s < rank.layout().model.segments.size(); ++s) {
    seconds.push_back({.forward = step.visit_times().of(s, Phase::kForward),
                       .backward = step.visit_times().of(s, Phase::kBackward)});
  }
  FlopsProfile profile{.step = result.step,
                       .world_size = communicator->world_size(),
                       .data_ranks = groups_of_ranks(),
                       .micro_batch = config.batch.micro_batch_size,
                       .sequences = result.sequences,
                       .model = profile_modules(rank.layout().model, extents_, seconds,
                                                options.activation_checkpointing),
                       .phases = result.phases};
  if (options.device == DeviceKind::kSim) {
    profile.peak_tflops = options.sim.compute_flops_per_s * 1e-12;
  } else if (communicator->rank() == 0) {  // whose profile is said; the others wait for it
    profile.peak_tflops = co_await peak_tflops(&tensors, reporting.matmul);
  }
  co_return profile;
}

Task<CommsSummary> Engine::Impl::comms_summary(bool compare) {
  const auto logs = logs_of(tensors);
  CommsSummary summary = summarise_comms(logs, rank.layout().model, communicator->world_size());
  if (!compare || !summary.enabled || communicator->world_size() == 1) {
    co_return summary;
  }
  const std::vector<float> mine = latest_times(logs);
  // The rows that are exchanged below must be equally many on all ranks.
  std::size_t counts = 0;
  for (const CommsRow& row : summary.rows) {
    counts = counts * 31 + std::hash<std::string>()(row.operation);
    counts = counts * 31 + static_cast<std::size_t>(row.block_bytes);
    counts = counts * 31 + static_cast<std::size_t>(row.count);
  }
  const auto as_bytes = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  rank.comms_log()->set_counting(false);
  const std::vector<std::byte> own = as_bytes(std::array{counts});
  const std::vector<std::byte> all_counts = co_await of_all_ranks(own);
  for (std::size_t at = 0; at < all_counts.size(); at += own.size()) {
    if (std::memcmp(all_counts.data() + at, own.data(), own.size()) != 0) {
      rank.comms_log()->set_counting(true);
      co_return summary;
    }
  }
  const std::vector<std::byte> all_bytes = co_await of_all_ranks(as_bytes(mine));
  rank.comms_log()->set_counting(true);
  std::vector<float> all(all_bytes.size() / sizeof(float));
  std::memcpy(all.data(), all_bytes.data(), all_bytes.size());
  compare_stragglers(summary, mine, all);
  co_return summary;
}

void Engine::report_by(Reporting reporting) { impl_->reporting = std::move(reporting); }

CommsSummary Engine::comms_summary(bool show_straggler) {
  impl_->require_between_steps("comms_summary()");
  return impl_->run(&Impl::comms_summary, impl_.get(), show_straggler);
}

void Engine::log_summary(bool show_straggler) {
  const std::string table = comms_table(comms_summary(show_straggler));
  impl_->say(table.substr(0, table.find_last_not_of('\n') + 1));
}

const FlopsProfile* Engine::flops_profile() const {
  return impl_->flops_profile ? &*impl_->flops_profile : nullptr;
}

}  // namespace tandem
