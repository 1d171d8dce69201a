#include "examples/support/training_run.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/storage/file.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/distributed/environment.hpp"
#include "engine/layout/update_config.hpp"
#include "engine/memory/saved_parameters.hpp"
#include "engine/metrics/line_file.hpp"
#include "engine/types/version.hpp"
#include "examples/support/program.hpp"
#include "examples/support/report/block_files.hpp"
#include "models/layers/gemm.hpp"
#include "runtime/system/machine.hpp"

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
          .warmup_steps = flags.warmup_steps,
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

namespace {

/// What a run adds to one disk, and the room there.
struct DiskRoom {
  std::int64_t saved = 0;
  std::int64_t checkpoints = 0;
  std::uint64_t free = 0;
};

/// `there`: checkpoints that lie on it.
DiskRoom room_of(const RunFlags& flags, std::int64_t model_bytes, std::int64_t checkpoint_bytes,
                 std::uint64_t free, std::int64_t there) {
  const bool saves = flags.save_every > 0 || !flags.stop_after.empty();
  // While training, one more than stay; the model comes when the last one is whole.
  const std::int64_t more = saves ? std::max<std::int64_t>(0, flags.keep - there) : 0;
  const std::int64_t while_saving = saves ? (more + 1) * checkpoint_bytes : 0;
  const std::int64_t at_the_end = more * checkpoint_bytes + model_bytes;
  return {.saved = model_bytes,
          .checkpoints = std::max(while_saving, at_the_end) - model_bytes,
          .free = free};
}

}  // namespace

void plan_disk(RunPlan& plan, const Model& model, const RunFlags& flags, const Config& config,
               std::size_t weight_bytes, std::int64_t beside_bytes, Communicator& ranks,
               const Disks& disks) {
  const auto arrays = static_cast<std::int64_t>(state_arrays(update_config(config.optimizer)));
  constexpr std::int64_t kReportBytes = 128 << 10;  // of a short run; longer ones write more
  const std::int64_t model_bytes =
      saved_parameters(model) * static_cast<std::int64_t>(weight_bytes) + beside_bytes +
      kReportBytes;
  std::int64_t checkpoint_bytes = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      constexpr auto kFp32Bytes = static_cast<std::int64_t>(sizeof(float));
      checkpoint_bytes += parameter.numel() * kFp32Bytes * (parameter.frozen ? 1 : 1 + arrays);
    }
  }
  std::string text;
  if (disks.is_first_of_its_disk(static_cast<std::uint32_t>(ranks.rank()))) {
    const NamedCheckpoints there = named_checkpoints(flags.output_dir + "/checkpoints");
    text = fmt::format("{} {}", free_disk_bytes(flags.output_dir),
                       there.whole.size() + there.slices.size());
  }
  const std::vector<std::string> facts = ranks.of_all_ranks(text);
  DiskRoom tightest;
  std::uint32_t number = 0;
  const auto left = [](const DiskRoom& room) {
    return static_cast<double>(room.free) - static_cast<double>(room.saved + room.checkpoints);
  };
  for (std::uint32_t disk = 0; disk < disks.count(); ++disk) {
    std::istringstream words(facts[disks.first_rank_of(disk)]);
    std::uint64_t free = 0;
    std::int64_t there = 0;
    words >> free >> there;
    const auto sharers = static_cast<std::int64_t>(disks.ranks_of(disk).size());
    const bool in_parts = disks.are_several() && config.zero.stage > 0;
    const DiskRoom room = room_of(
        flags, disk == 0 ? model_bytes : 0,
        in_parts ? checkpoint_bytes * sharers / ranks.world_size() : checkpoint_bytes, free, there);
    if (disk == 0 || left(room) < left(tightest)) {
      tightest = room;
      number = disk;
    }
  }
  const auto on_disk = [&](MemoryPurpose purpose) -> std::int64_t& {
    return plan.report.plan
        .bytes[static_cast<std::size_t>(purpose)][static_cast<std::size_t>(MemoryKind::kDisk)];
  };
  on_disk(MemoryPurpose::kSaved) = tightest.saved;
  on_disk(MemoryPurpose::kCheckpoint) = tightest.checkpoints;
  if (tightest.free <= static_cast<std::uint64_t>(INT64_MAX)) {
    const std::string host = disks.are_several() ? " on host " + disks.hosts[number] : "";
    plan.limits.disk = {static_cast<std::int64_t>(tightest.free),
                        fmt::format("free on the disk of {}{}", flags.output_dir, host)};
  }
  if (!plan.report.lacks) {
    plan.report.lacks = shortfall_of(plan.report.plan, plan.limits);
  }
}

std::optional<FolderLock> take_output_dir(const std::string& output_dir, int rank,
                                          const Disks& disks) {
  if (!disks.is_first_of_its_disk(static_cast<std::uint32_t>(rank))) {
    return std::nullopt;
  }
  make_output_dir(output_dir);
  // Of a run that was begun anew: a lost host's ranks may still save, for as long as their launcher
  // takes to find out that it is alone.
  constexpr std::chrono::seconds kMostAlone{90};
  const bool is_restart = parse_environment(process_variables()).restart > 0;
  FolderLock lock(output_dir, "output",
                  fmt::format("{}, process {}", program_invocation_short_name, ::getpid()),
                  is_restart ? kMostAlone : std::chrono::seconds(0));
  remove_abandoned_files(output_dir);
  remove_abandoned(std::filesystem::path(output_dir) / "model");
  remove_abandoned(std::filesystem::path(output_dir) / "adapter");
  return lock;
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
  constexpr double kTera = 1e12;
  const double of_a_rank = is_simulated ? parse_sim_spec(flags.sim_spec).compute_flops_per_s / kTera
                                        : engine.measure_peak_tflops(&layer_matmul);
  set_utilisation(summary, model_tflops, of_a_rank * static_cast<double>(config.world_size));
  summary.device = std::string(name_of(device));
  summary.world_size = config.world_size;
  summary.version = version();
  summary.flags = flags.typed;
}

}  // namespace tandem
