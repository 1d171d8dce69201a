#include "trainer/flags/engine_flags.hpp"

#include <utility>

#include <fmt/format.h>

#include "engine/tensors/device_choice.hpp"
#include "runtime/util/error.hpp"
#include "trainer/flags/flag_table.hpp"

namespace tandem {

namespace {

void check_placement(const EngineFlags& f, DeviceKind device) {
  const double ratio = f.engine.offload_ratio.value_or(1);
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

}  // namespace

FlagGroup engine_flags(EngineFlags& f) {
  EngineOptions& o = f.engine;
  constexpr double kMostThreads = 4096;
  return {
      "Engine",
      {
          {"--device", flags::text(f.device).one_of({"auto", "cpu", "cuda", "sim"}),
           "auto (cuda where a GPU can be used, else cpu), cpu, cuda, or sim: a simulated "
           "accelerator in real time"},
          {"--sim_spec", flags::text(f.sim_spec).checked_by([](const std::string& text) {
             (void)parse_sim_spec(text);
           }),
           "What --device sim simulates, e.g. compute=2T,h2d=50GB,d2h=50GB,hbm=3TB,memory=16GB,"
           "latency=10us"},
          {"--placement", flags::name_in(o.placement, "--placement"),
           "Where optimizer state lies beside an accelerator: auto (per unit, so that the step is "
           "shortest), cpu, gpu, or stream (in host memory, updated on the device); nvme: in a "
           "file, with any device"},
          {"--nvme_path", flags::text(o.nvme.path),
           "Folder on a local disk for optimizer state, for weights where the config's "
           "offload_param.device is nvme, and on the CPU for boundaries (--activation_offload); "
           "with --placement auto, for the state that the host's memory does not hold"},
          {"--nvme_any_disk", flags::on(o.nvme.any_disk),
           "Take --nvme_path even where it lies in memory (tmpfs) or on the network"},
          {"--offload_ratio", flags::number(o.offload_ratio).share("it must be between 0 and 1"),
           "Share of the optimizer's bytes (0 to 1) that stays on the host; the rest goes where "
           "--placement says, by itself to the device, or where the CPU computes to --nvme_path; "
           "default: the config's, or chosen"},
          {"--overlap", flags::name_in(o.overlap, "--overlap"),
           "What may run at the same time: off, comm (gathers and reductions), offload (also the "
           "optimizer, under the next forward), full (also under its own backward)"},
          {"--speculate", flags::name_in(o.speculate, "--speculate"),
           "With --overlap full, whether updates begin ahead of the verdict on the gradient: auto "
           "(beside an accelerator), on or off"},
          {"--inflight_buckets", flags::number(o.inflight_buckets).not_negative(),
           "Units that may be ahead of the verdict, each with a second copy of its optimizer "
           "state; "
           "0: as many as the memory holds that the run leaves free, less a tenth, and none where "
           "the state on NVMe "
           "would then take more than half of its free disk"},
          {"--optimizer_state", flags::name_in(o.state_layout, "--optimizer_state"),
           "How master weights and moments lie in memory: fp32, split (the same bits in less), "
           "bf16 or int8 (moments rounded)"},
          {"--reduction", flags::name_in(f.reduction, "--reduction"),
           "In which order the ranks' gradients are added: exact (rank by rank: the bits of one "
           "rank), fast (a host's ranks first, for less traffic between hosts) or nccl (NCCL's own "
           "sums, between GPUs)"},
          {"--loss_mean", flags::name_in(o.loss_mean, "--loss_mean"),
           "What a step's loss is the mean of: micro_batches (of their means, as DeepSpeed's), or "
           "tokens (of all labels of the step)"},
          {"--forced_misses", flags::number(o.forced_misses).share("it must be between 0 and 1"),
           "Share of the steps (0 to 1) whose speculation is taken for lost, to measure what that "
           "costs; no number changes"},
          {"--io_backend", flags::name_in(o.io_backend, "--io_backend"),
           "How checkpoints, and optimizer state on NVMe, are written and read: auto (io_uring "
           "where it can be had), uring or threads"},
          {"--gather_slots", flags::number(o.gather_slots).not_negative(),
           "Gathered units held at a time; 0: chosen, on a GPU as many as its memory holds beside "
           "all else"},
          {"--optimizer_threads", flags::number(o.optimizer_threads).not_negative(kMostThreads),
           "Threads of the Adam pool; 0: chosen"},
          {"--compute_threads", flags::number(o.compute_threads).not_negative(kMostThreads),
           "Threads of the compute lane; 0: all cores"},
          {"--pin_cores", flags::on(o.pin_cores),
           "Bind the compute lane, the Adam pool and the copies to their cores (`cores` says "
           "which)"},
      }};
}

void check_engine_flags(const EngineFlags& f, DeviceKind device) {
  const EngineOptions& o = f.engine;
  if (o.speculate == Speculate::kOn && o.overlap != Overlap::kFull) {
    throw user_error("flags",
                     "--speculate on needs --overlap full, and it is {}; leave one of them out",
                     name_of(o.overlap));
  }
  if (f.reduction == ReductionOrder::kNccl && device != DeviceKind::kCuda) {
    throw user_error("flags",
                     "--reduction nccl is for ranks on GPUs, and --device {} has none here; use "
                     "exact or fast",
                     f.device);
  }
  check_placement(f, device);
}

EngineOptions engine_options(const EngineFlags& flags, DeviceKind device) {
  EngineOptions options = flags.engine;
  options.device = device;
  options.sim = parse_sim_spec(flags.sim_spec);
  options.nvme.overflow = !options.nvme.path.empty();
  return with_gpu(std::move(options));
}

}  // namespace tandem
