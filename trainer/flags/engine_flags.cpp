#include "trainer/flags/engine_flags.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/tensors/device_choice.hpp"
#include "runtime/util/error.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

namespace {

/// A flag whose values are an enum's names.
template <class E>
void add_enum(CLI::App& app, const std::string& flag, E& value, const std::string& help) {
  const auto set = [flag, &value](const std::string& text) {
    const auto parsed = parse_enum<E>(text);
    if (!parsed) {
      throw user_error("flags", "{} is \"{}\"; use {}", flag, text, choices<E>());
    }
    value = *parsed;
  };
  app.add_option_function<std::string>(flag, set, help)->default_str(std::string(name_of(value)));
}

void check_placement(const EngineFlags& f, DeviceKind device) {
  const double ratio = f.engine.offload_ratio.value_or(1);
  if (!(ratio >= 0 && ratio <= 1)) {
    throw user_error("flags", "--offload_ratio is {}; it must be between 0 and 1", ratio);
  }
  const Placement placement = f.engine.placement;
  if (placement == Placement::kCpu && ratio < 1) {
    throw user_error("flags",
                     "--placement is cpu and --offload_ratio {}, which leaves {} of the state for "
                     "the device; leave one of them out",
                     ratio, 1 - ratio);
  }
  const bool leaves = placement == Placement::kGpu || placement == Placement::kStream || ratio < 1;
  const bool to_nvme = placement == Placement::kNvme || !f.engine.nvme.path.empty();
  if (leaves && !to_nvme && device == DeviceKind::kCpu) {
    throw user_error(
        "flags",
        "{} needs an accelerator{}, and --device {} has none here; leave it out, or use "
        "--device sim for a simulated one",
        ratio < 1 ? fmt::format("--offload_ratio {}", ratio)
                  : fmt::format("--placement {}", name_of(placement)),
        ratio < 1 ? " or --nvme_path" : "", f.device);
  }
}

void require_thread_count(std::string_view flag, int value) {
  constexpr int kMost = 4096;
  if (value < 0 || value > kMost) {
    throw user_error("flags", "{} is {}; it takes 0 (chosen) to {}", flag, value, kMost);
  }
}

}  // namespace

void add_engine_flags(CLI::App& app, EngineFlags& f) {
  EngineOptions& o = f.engine;
  app.add_option("--device", f.device,
                 "auto (cuda where a GPU can be used, else cpu), cpu, cuda, or sim: a simulated "
                 "accelerator in real time")
      ->capture_default_str();
  app.add_option("--sim_spec", f.sim_spec,
                 "What --device sim simulates, e.g. compute=2T,h2d=50GB,d2h=50GB,hbm=3TB,"
                 "memory=16GB,latency=10us");
  add_enum(app, "--placement", o.placement,
           "Where optimizer state lies beside an accelerator: auto (per unit, so that the step "
           "is shortest), cpu, gpu, or stream (in host memory, updated on the device); nvme: in a "
           "file, with any device");
  app.add_option("--nvme_path", o.nvme.path,
                 "Folder on a local disk for optimizer state, for weights where the config's "
                 "offload_param.device is nvme, and on the CPU for boundaries "
                 "(--activation_offload); with --placement auto, for the state that the host's "
                 "memory does not hold");
  app.add_flag("--nvme_any_disk", o.nvme.any_disk,
               "Take --nvme_path even where it lies in memory (tmpfs) or on the network");
  app.add_option(
      "--offload_ratio", o.offload_ratio,
      "Share of the optimizer's bytes (0 to 1) that stays on the host; the rest goes "
      "where --placement says, by itself to the device, or where the CPU computes to --nvme_path; "
      "default: the config's, or chosen");
  add_enum(app, "--overlap", o.overlap,
           "What may run at the same time: off, comm (gathers and reductions), offload (also "
           "the optimizer, under the next forward), full (also under its own backward)");
  add_enum(app, "--speculate", o.speculate,
           "With --overlap full, whether updates begin ahead of the verdict on the gradient: "
           "auto (beside an accelerator), on or off");
  app.add_option("--inflight_buckets", o.inflight_buckets,
                 "Units that may be ahead of the verdict, each with a second copy of its optimizer "
                 "state; 0: as many as a quarter of the free memory holds, and none where the "
                 "state on NVMe would then take more than half of its free disk")
      ->capture_default_str();
  add_enum(app, "--optimizer_state", o.state_layout,
           "How master weights and moments lie in memory: fp32, split (the same bits in less), "
           "bf16 or int8 (moments rounded)");
  add_enum(app, "--reduction", f.reduction,
           "In which order the ranks' gradients are added: exact (rank by rank: the bits of one "
           "rank), fast (a host's ranks first, for less traffic between hosts) or nccl (NCCL's own "
           "sums, between GPUs)");
  add_enum(app, "--loss_mean", o.loss_mean,
           "What a step's loss is the mean of: micro_batches (of their means, as DeepSpeed's), or "
           "tokens (of all labels of the step)");
  app.add_option("--forced_misses", o.forced_misses,
                 "Share of the steps (0 to 1) whose speculation is taken for lost, to measure what "
                 "that costs; no number changes")
      ->capture_default_str();
  add_enum(
      app, "--io_backend", o.io_backend,
      "How checkpoints, and optimizer state on NVMe, are written and read: auto (io_uring where "
      "it can be had), uring or threads");
  app.add_option("--gather_slots", o.gather_slots, "Gathered units held at a time; 0: chosen")
      ->capture_default_str();
  app.add_option("--optimizer_threads", o.optimizer_threads, "Threads of the Adam pool; 0: chosen")
      ->capture_default_str();
  app.add_option("--compute_threads", o.compute_threads,
                 "Threads of the compute lane; 0: all cores")
      ->capture_default_str();
  app.add_flag(
      "--pin_cores", o.pin_cores,
      "Bind the compute lane, the Adam pool and the copies to their cores (`cores` says which)");
}

void check_engine_flags(const EngineFlags& f, DeviceKind device) {
  const EngineOptions& o = f.engine;
  if (o.speculate == Speculate::kOn && o.overlap != Overlap::kFull) {
    throw user_error("flags",
                     "--speculate on needs --overlap full, and it is {}; leave one of them out",
                     name_of(o.overlap));
  }
  if (!(o.forced_misses >= 0 && o.forced_misses <= 1)) {
    throw user_error("flags", "--forced_misses is {}; it must be between 0 and 1", o.forced_misses);
  }
  if (f.reduction == ReductionOrder::kNccl && device != DeviceKind::kCuda) {
    throw user_error("flags",
                     "--reduction nccl is for ranks on GPUs, and --device {} has none here; use "
                     "exact or fast",
                     f.device);
  }
  require_not_negative("--inflight_buckets", o.inflight_buckets);
  require_not_negative("--gather_slots", o.gather_slots);
  require_thread_count("--optimizer_threads", o.optimizer_threads);
  require_thread_count("--compute_threads", o.compute_threads);
  check_placement(f, device);
  (void)parse_sim_spec(f.sim_spec);
}

EngineOptions engine_options(const EngineFlags& flags, DeviceKind device) {
  EngineOptions options = flags.engine;
  options.device = device;
  if (device == DeviceKind::kCuda) {
    options.open_gpu = &open_gpu;
  }
  options.sim = parse_sim_spec(flags.sim_spec);
  options.nvme.overflow = !options.nvme.path.empty();
  return options;
}

}  // namespace tandem
