#include "examples/support/training_run.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/types/version.hpp"
#include "examples/support/program.hpp"
#include "examples/support/resident_set.hpp"
#include "runtime/util/machine.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kStepsBetweenMemoryReadings = 100;
constexpr double kLongStepS = 0.01;

std::int64_t recent_peak_bytes(const StepResult& result) {
  static std::int64_t peak_bytes = 0;
  if (peak_bytes == 0 || result.step_time_s > kLongStepS ||
      result.step % kStepsBetweenMemoryReadings == 0) {
    peak_bytes = static_cast<std::int64_t>(machine::peak_rss_bytes());
  }
  return peak_bytes;
}

}  // namespace

std::string fresh_output_dir(std::string_view name) {
  return fmt::format("runs/{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::time(nullptr)));
}

std::string waits_file(const RunFlags& flags, int rank) {
  return fmt::format("{}/waits-rank{}.txt", flags.output_dir, rank);
}

StepMetrics metrics_of(const StepResult& result, double epoch, double tflops) {
  return {.step = result.step,
          .epoch = epoch,
          .loss = result.loss,
          .lr = result.learning_rate,
          .grad_norm = result.verdict.norm.value,
          .loss_scale = result.loss_scale,
          .tokens = result.tokens,
          .step_time_s = result.step_time_s,
          .tokens_per_s = static_cast<double>(result.tokens) / result.step_time_s,
          .tflops = tflops,
          .overlap_efficiency = result.overlap_efficiency,
          .optimizer_s = result.exposure.optimizer_busy_s,
          .exposed_optimizer_s = result.exposure.optimizer_s,
          .exposed_gather_s = result.exposure.gather_s,
          .exposed_reduce_s = result.exposure.reduce_s,
          .exposed_data_s = result.exposure.data_s,
          .exposed_checkpoint_s = result.exposure.checkpoint_s,
          .verdict = std::string(name_of(result.verdict.outcome)),
          .speculated = result.verdict.speculated,
          .peak_host_bytes = recent_peak_bytes(result),
          .peak_device_bytes = result.peak_device_bytes};
}

RunLimits run_limits(const RunFlags& flags) {
  RunLimits limits;
  if (flags.host_memory_gb > 0) {
    limits.memory.host = {static_cast<std::int64_t>(flags.host_memory_gb * (1 << 30)),
                          "by --host_memory_gb"};
  }
  return limits;
}

void write_plan(const RunPlan& plan, const std::string& output_dir) {
  write_file(std::filesystem::path(output_dir) / "memory_plan.json", "output",
             plan.report.json(plan.limits));
}

std::string placement_line(const RunPlan& plan) { return "placement " + plan.placement; }

std::string memory_line(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryKind kind :
       {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kHost, MemoryKind::kShared}) {
    if (plan.total(kind) > 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", size_text(plan.total(kind)),
                          name_of(kind));
    }
  }
  return fmt::format("memory   planned for a rank: {}", text);
}

void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, const MemoryPlan& plan) {
  const bool is_simulated = flags.device == "sim";
  constexpr double kTera = 1e12;
  summary.mfu =
      model_tflops / (is_simulated ? parse_sim_spec(flags.sim_spec).compute_flops_per_s / kTera
                                   : engine.measure_peak_tflops());
  const DeviceKind device = choose_device(flags.device);
  summary.device = std::string(name_of(device));
  summary.world_size = config.world_size;
  summary.version = version();
  summary.flags = flags.typed;
  const ResidentSet held = resident_set();
  const auto figure = [&](MemoryKind kind, std::int64_t actual) {
    summary.memory[std::string(name_of(kind))] = {.predicted_bytes = plan.total(kind),
                                                  .actual_bytes = actual};
  };
  figure(MemoryKind::kHost, held.host_peak);
  if (plan.total(MemoryKind::kShared) > 0) {
    figure(MemoryKind::kShared, held.shared);
  }
  if (is_simulated) {  // its memory is the host's, and counted there, too
    figure(MemoryKind::kDevice, static_cast<std::int64_t>(engine.resident_bytes().device));
    summary.memory["device"].predicted_bytes = plan.simulated_bytes;
  } else if (device == DeviceKind::kCuda) {  // slots and blocks; activations come on top
    figure(MemoryKind::kDevice, static_cast<std::int64_t>(engine.resident_bytes().device));
  }
}

}  // namespace tandem
