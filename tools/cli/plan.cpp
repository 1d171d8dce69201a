// `tandem plan`: what a run of finetune_zero3 would hold, by purpose and kind of memory, and where
// its optimizer state would lie, out of config.json alone; whether it fits, and the smallest change
// that makes it fit. The run's own flags and the run's own plan (engine/plan/run_plan.hpp); nothing
// of the model is allocated or read but its description.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/layout/sharding.hpp"
#include "engine/plan/run_plan.hpp"
#include "engine/scaling/host_links.hpp"
#include "models/causal_lm.hpp"
#include "models/hub/hub_paths.hpp"
#include "models/io/hf_config.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/finetune/config.hpp"
#include "trainer/flags/flag_table.hpp"
#include "trainer/program/notes.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

// The accelerator where no --sim_spec says otherwise: bf16 matmuls as an H200 makes them at these
// shapes, PCIe 5 links, its memory.
constexpr SimSpec kUsualAccelerator = {.compute_flops_per_s = 500e12,
                                       .to_device_bytes_per_s = 50e9,
                                       .to_host_bytes_per_s = 50e9,
                                       .memory_bytes_per_s = 4e12};
// The pool's updates on the host of such an accelerator. A plan for it is the same on whatever
// machine it is made, so nothing is measured here.
constexpr HostUpdateSpeeds kUsualHost = {.in_place = 50e9};

struct PlanFlags : FinetuneFlags {
  std::int64_t world_size = 1;
  std::int64_t ranks_per_host = 0;  // 0: all
  double gpu_memory_gb = 0;         // 0: what is free here
  bool json = false;
  std::int64_t hosts = 0;      // 0: no forecast
  double network = 0;          // GB/s of a host's link, in one direction
  double network_latency = 0;  // us, of a message
  double step_time = 0;        // s, of the same global batch on one host
};

FlagGroup own_flags(PlanFlags& f) {
  constexpr double kMostRanks = 1 << 20;
  return {
      "",
      {
          {"--model_name", flags::text(f.model_name).required(),
           "Folder with config.json, a config.json, or a hub id in the cache"},
          {"--world_size", flags::number(f.world_size).above_zero(kMostRanks), "Ranks"},
          {"--ranks_per_host", flags::number(f.ranks_per_host).not_negative(kMostRanks),
           "Of these on one host; 0: all"},
          {"--gpu_memory_gb",
           flags::number(f.gpu_memory_gb).not_negative(kMostGib).without_default(),
           "GiB of one rank's accelerator; default: what is free here"},
          {"--host_memory_gb",
           flags::number(f.host_memory_gb).not_negative(kMostGib).without_default(),
           "GiB of one host, for all its ranks; default: what is free here"},
          {"--hosts", flags::number(f.hosts).above_zero(4096).if_given().without_default(),
           "With --ranks_per_host ranks each (1): also what a step sends over their links and how "
           "long it would take, on each number of hosts up to this one"},
          {"--network", flags::number(f.network).without_default(),
           "With --hosts: GB/s of a host's link in one direction; `tandem bench net` measures"},
          {"--network_latency", flags::number(f.network_latency).without_default(),
           "With --hosts: of a message, in us"},
          {"--step_time", flags::number(f.step_time).without_default(),
           "With --hosts: seconds of a step with this global batch on one host"},
          {"--json", flags::on(f.json), "Print JSON instead of the table"},
      }};
}

/// --device auto: cuda with --gpu_memory_gb or a GPU.
DeviceKind device_of(const PlanFlags& f) {
  if (f.device == "auto") {
    return f.gpu_memory_gb > 0 || !gpus().empty() ? DeviceKind::kCuda : DeviceKind::kCpu;
  }
  return *parse_enum<DeviceKind>(f.device);
}

RunLimits limits_of(const PlanFlags& f, DeviceKind device) {
  RunLimits limits{.ranks_per_host = f.ranks_per_host, .elsewhere = true};
  if (device == DeviceKind::kCuda) {
    limits.device_speeds = f.sim_spec.empty() ? kUsualAccelerator : parse_sim_spec(f.sim_spec);
    limits.host_updates = kUsualHost;
  }
  const auto set = [](double gib, const std::string& flag, std::optional<MemoryLimit>& limit) {
    if (const std::int64_t bytes = bytes_of_gib(flag, gib); bytes > 0) {
      limit = {bytes, "by " + flag};
    }
  };
  set(f.gpu_memory_gb, "--gpu_memory_gb", limits.memory.device);
  set(f.host_memory_gb, "--host_memory_gb", limits.memory.host);
  return limits;
}

/// Ranks of all hosts.
void settle_hosts(PlanFlags& f) {
  if (f.hosts == 0) {
    return;
  }
  if (f.network <= 0 || f.step_time <= 0 || f.network_latency < 0 || f.json) {
    throw user_error(
        "flags",
        "--hosts {} is with --network {}, --step_time {}, --network_latency {}{}; give "
        "--network above 0 (GB/s), --step_time above 0 (seconds of a step on one "
        "host), and no --json",
        f.hosts, f.network, f.step_time, f.network_latency, f.json ? ", --json" : "");
  }
  f.ranks_per_host = std::max<std::int64_t>(1, f.ranks_per_host);
  const std::int64_t ranks = f.hosts * f.ranks_per_host;
  if (f.world_size != 1 && f.world_size != ranks) {
    throw user_error("flags",
                     "--world_size is {}, and {} hosts with {} each have {} ranks; leave "
                     "it out",
                     f.world_size, f.hosts, f.ranks_per_host, ranks);
  }
  f.world_size = ranks;
}

HostsWork work_of_hosts(const Model& model, const Config& config, const PlanFlags& f) {
  HostsWork work{
      .ranks_per_host = f.ranks_per_host,
      .stage = static_cast<int>(config.zero.stage),
      .micro_batches = f.world_size * std::max<std::int64_t>(1, config.batch.accumulation_steps),
      .width = config.precision() == Precision::kF32 ? 4 : 2,
      .blocks = static_cast<std::int64_t>(model.units.size()),
      .order = f.reduction};
  const Sharding sharding =
      Sharding::of(model, config.zero, static_cast<std::uint32_t>(f.world_size), 0);
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const bool is_gathered = work.stage == 3 && !sharding.weights_replicated[u];
    work.gathered += is_gathered ? unit.numel() : 0;
    work.kept += is_gathered || unit.frozen() ? 0 : unit.numel();
    work.reduced += unit.frozen() ? 0 : unit.numel();
  }
  return work;
}

void print_hosts(const HostsWork& work, const PlanFlags& f) {
  const auto forecasts =
      forecast_hosts(work, {.bytes_per_s = f.network * 1e9, .latency_s = f.network_latency * 1e-6},
                     f.step_time, f.hosts);
  fmt::print(
      "\nhosts with {} rank{} each, links of {:.2f} GB/s, {} micro-batches in a step, {} sums\n"
      "{:>5}  {:>14}  {:>14}  {:>12}  {:>22}  {:>12}\n",
      work.ranks_per_host, work.ranks_per_host == 1 ? "" : "s", f.network, work.micro_batches,
      name_of(work.order), "hosts", "gathers, MB", "reductions, MB", "network, ms", "step, ms",
      "compute used");
  for (const HostsForecast& one : forecasts) {
    fmt::print("{:>5}  {:>14.1f}  {:>14.1f}  {:>12.1f}  {:>22}  {:>10.0f} %\n", one.hosts,
               one.bytes.gathers / 1e6, one.bytes.reductions / 1e6, one.network_s * 1e3,
               fmt::format("{:.1f} to {:.1f}", one.hidden_s * 1e3, one.exposed_s * 1e3),
               one.efficiency() * 100);
  }
  const std::int64_t stops = hosts_that_no_longer_pay(forecasts);
  fmt::print(
      "a step takes what is longer, compute or its link, if the one hides the other, and at "
      "most both; {}\n",
      stops == 0 ? fmt::format("up to {} hosts pay", forecasts.back().hosts)
                 : fmt::format("from {} hosts on more than half of their compute waits for the "
                               "network, and more no longer pay",
                               stops));
}

HfConfig described(const std::string& name) {
  const bool is_file = std::filesystem::is_regular_file(name);
  const std::filesystem::path path =
      is_file ? std::filesystem::path(name) : resolve_model_folder(name);
  HfConfig config = read_hf_config(path);
  print_resolved(name, path);
  print_notes(config.notes);
  return config;
}

std::int64_t activations_of(const RunPlan& plan) {
  std::int64_t bytes = 0;
  for (const std::int64_t of_kind :
       plan.memory().bytes[static_cast<std::size_t>(MemoryPurpose::kActivations)]) {
    bytes += of_kind;
  }
  return bytes;
}

/// Dropout of attention keeps what is never written down without it.
std::string cause_of_activations(const HfConfig& shape, const RunPlan& plan,
                                 const std::function<RunPlan(const HfConfig&)>& plan_of) {
  if (shape.dropout.attention == 0) {
    return "";
  }
  HfConfig without = shape;
  without.dropout.attention = 0;
  const std::int64_t least = activations_of(plan_of(without));
  const std::int64_t most = activations_of(plan);
  return 2 * least > most
             ? ""
             : fmt::format(
                   "activations are {}, since attention_dropout is {} and every head's attention "
                   "is kept, tokens x tokens; {} with attention_dropout 0 in config.json\n",
                   size_text(most), shape.dropout.attention, size_text(least));
}

}  // namespace

int run_plan(int argc, char** argv) {
  CLI::App app("The memory that a run would need, and whether it fits; nothing is allocated",
               "tandem plan");
  PlanFlags flags;
  FlagTable table(app);
  table.add(own_flags(flags));
  table.add(memory_flags(flags));
  table.add({config_flags(flags), engine_flags(flags)});
  if (!parse_run_flags(app, flags, argc, argv)) {
    return 0;
  }
  table.check();
  settle_hosts(flags);
  const DeviceKind device = device_of(flags);
  check_trained_flags(flags);
  check_engine_flags(flags, device);
  const HfConfig shape = described(flags.model_name);
  const Config config =
      finetune_config(flags, device, flags.world_size, {.hidden_size = shape.hidden_size});
  Alone alone;
  const std::int64_t length = std::min(flags.max_length, shape.max_position_embeddings);
  const auto plan_of = [&](const HfConfig& model) {
    return tandem::plan_run(make_causal_lm(model, flags.leaf_module, 0, trained_parts(flags)),
                            config, engine_options(flags, device),
                            {.length = length, .packed = flags.packing != "off"},
                            limits_of(flags, device), alone);
  };
  const RunPlan plan = plan_of(shape);
  if (flags.json) {
    fmt::print("{}", plan.report.json(plan.limits));
  } else {
    fmt::print(
        "{} ({}): {:.2f} billion parameters, {}, ZeRO stage {}, {} rank{}, {} x {} tokens per "
        "micro-batch, {}, optimizer state {}\n{}\n\n{}",
        one_line(flags.model_name), one_line(shape.model_type),
        static_cast<double>(plan.memory().parameters) / 1e9, name_of(config.precision()),
        config.zero.stage, flags.world_size, flags.world_size == 1 ? "" : "s",
        std::max<std::int64_t>(1, config.batch.micro_batch_size), length,
        device == DeviceKind::kCpu ? "on the CPU" : "on an accelerator",
        name_of(flags.engine.state_layout), escaped_lines(plan.placement_text()),
        escaped_lines(plan.report.text(plan.limits)));
  }
  if (flags.hosts > 0) {
    print_hosts(work_of_hosts(make_causal_lm(shape, flags.leaf_module, 0, trained_parts(flags)),
                              config, flags),
                flags);
  }
  if (plan.report.lacks && !flags.json) {
    fmt::print("{}", escaped_lines(cause_of_activations(shape, plan, plan_of)));
  }
  std::fflush(stdout);
  require_fit(plan.report, plan.limits, false);
  return 0;
}

}  // namespace tandem
