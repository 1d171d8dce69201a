#include "trainer/training_run.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "engine/tensors/device_choice.hpp"
#include "engine/types/version.hpp"
#include "models/layers/gemm.hpp"
#include "runtime/system/machine.hpp"
#include "trainer/program/program.hpp"
#include "trainer/report/block_files.hpp"

namespace tandem {

namespace {

void layer_matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  matmul(c, a, b);
}

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
          .micro_batches_unlabelled = result.micro_batches_unlabelled,
          .unlabelled = result.micro_batches_unlabelled == result.micro_batches,
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
          .exposed_disk_s = result.exposure.disk_s,
          .exposed_activation_s = result.exposure.activation_s,
          .disk_busy_s = result.exposure.disk_busy_s,
          .verdict = std::string(name_of(result.verdict.outcome)),
          .speculated = result.verdict.speculated,
          .peak_host_bytes = recent_peak_bytes(result),
          .peak_device_bytes = result.peak_device_bytes,
          .phases = result.phases};
}

MetricsOptions metrics_options(const RunFlags& flags, const Engine& engine,
                               std::int64_t total_steps) {
  return {.output_dir = flags.output_dir,
          .total_steps = total_steps,
          .warmup_steps = flags.summary_skip,
          .tensorboard = flags.tensorboard,
          .monitors = engine.config().monitors,
          .samples_per_step = engine.train_batch_size(),
          .scales_loss = engine.config().fp16.enabled,
          .wall_clock_breakdown = engine.config().wall_clock_breakdown,
          .wandb_over_steps = flags.use_wandb,
          .wandb_name = flags.wandb_run_name,
          .wandb_tags = flags.wandb_tags,
          .config_json = resolved_json(engine.config()),
          .append = engine.global_steps() > 0,
          .progress = progress_mode_of(flags.progress),
          .silent = engine.rank() != 0};
}

void report_by(MetricsWriter& metrics, Engine& engine) {
  engine.report_by(
      {.say = [&metrics](std::string_view text) { metrics.say(text); }, .matmul = &layer_matmul});
}

void finish_reports(MetricsWriter& metrics, Engine& engine) {
  const std::filesystem::path folder = metrics.output_dir();
  if (engine.config().comms_logger.enabled) {
    const CommsSummary summary = engine.comms_summary(/*show_straggler=*/true);
    std::string table = comms_table(summary);
    table.pop_back();  // say() ends the line
    metrics.say(table);
    if (engine.rank() == 0) {
      metrics.report(std::string(kCommsFile),
                     [&] { write_file(folder / kCommsFile, "comms_logger", comms_json(summary)); });
    }
  }
  if (const FlopsProfile* profile = engine.flops_profile();
      profile != nullptr && engine.rank() == 0) {
    metrics.report(std::string(kFlopsFile), [&] {
      write_file(folder / kFlopsFile, "flops_profiler", flops_profile_json(*profile));
    });
  }
}

RunLimits run_limits(const RunFlags& flags) {
  RunLimits limits;
  if (flags.host_memory_gb > 0) {
    limits.memory.host = {bytes_of_gib("--host_memory_gb", flags.host_memory_gb),
                          "by --host_memory_gb"};
  }
  return limits;
}

std::string disks_line(const Disks& disks) {
  return disks.are_several()
             ? fmt::format(
                   "disks    the output folder is another one on each of {} hosts, or groups "
                   "of them: checkpoints lie in slices there (tandem checkpoint gather)",
                   disks.count())
             : "";
}

void write_plan(const RunPlan& plan, const std::string& output_dir) {
  write_file(std::filesystem::path(output_dir) / "memory_plan.json", "output",
             plan.report.json(plan.limits));
}

std::string memory_line(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryKind kind :
       {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kHost, MemoryKind::kShared}) {
    if (plan.total(kind) > 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", size_text(plan.total(kind)),
                          name_of(kind));
    }
  }
  const std::int64_t copies = plan.of(MemoryPurpose::kCheckpoint, MemoryKind::kHost);
  if (copies > 0) {
    text += fmt::format(", up to {} of it for copies of a checkpoint, as many as wait for the disk",
                        size_text(copies));
  }
  return fmt::format("memory   planned for a rank: {}", text);
}

std::map<std::string, MemoryFigure> memory_figures(const MemoryPlan& plan, DeviceKind device,
                                                   const ResidentSet& held,
                                                   std::int64_t device_bytes) {
  std::map<std::string, MemoryFigure> figures;
  const auto figure = [&](MemoryKind kind, std::int64_t predicted, std::int64_t actual) {
    figures[std::string(name_of(kind))] = {.predicted_bytes = predicted, .actual_bytes = actual};
  };
  using enum MemoryKind;
  if (device == DeviceKind::kCuda) {
    figure(kHost, plan.total(kHost) + plan.total(kPinned) + plan.total(kShared),
           held.host_peak + held.shared);
    figure(kDevice, plan.total(kDevice) - plan.of(MemoryPurpose::kProcess, kDevice), device_bytes);
    return figures;
  }
  figure(kHost, plan.total(kHost), held.host_peak);
  if (plan.total(kShared) > 0) {
    figure(kShared, plan.total(kShared), held.shared);
  }
  if (device == DeviceKind::kSim) {  // its memory is the host's, and counted there, too
    figure(kDevice, plan.simulated_bytes, device_bytes);
  }
  return figures;
}

void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, const MemoryPlan& plan) {
  const DeviceKind device = choose_device(flags.device);
  // Before the peak is measured, which takes memory that the run did not have.
  summary.memory = memory_figures(plan, device, resident_set(),
                                  static_cast<std::int64_t>(engine.resident_bytes().device));
  const bool is_simulated = device == DeviceKind::kSim;
  MatmulRate of_a_rank;
  if (is_simulated) {
    constexpr double kTera = 1e12;
    of_a_rank.best_tflops = parse_sim_spec(flags.sim_spec).compute_flops_per_s / kTera;
    of_a_rank.median_tflops = of_a_rank.best_tflops;
  } else {
    of_a_rank = engine.measure_peak(&layer_matmul);
  }
  set_utilisation(summary, model_tflops, of_a_rank, static_cast<int>(config.world_size));
  summary.device = std::string(name_of(device));
  summary.world_size = config.world_size;
  summary.version = version();
  summary.flags = flags.typed;
}

}  // namespace tandem
