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

#include "engine/plan/run_plan.hpp"
#include "examples/support/finetune/config.hpp"
#include "examples/support/program.hpp"
#include "models/causal_lm.hpp"
#include "models/hub_paths.hpp"
#include "models/io/hf_config.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "tools/cli/commands.hpp"

namespace tandem {
namespace {

// What no --sim_spec says: bf16 matmuls as an H200 makes them at these shapes, PCIe 5 links, its
// memory.
constexpr SimSpec kUsualAccelerator = {.compute_flops_per_s = 500e12,
                                       .to_device_bytes_per_s = 50e9,
                                       .to_host_bytes_per_s = 50e9,
                                       .memory_bytes_per_s = 4e12};

struct PlanFlags : FinetuneFlags {
  std::int64_t world_size = 1;
  std::int64_t ranks_per_host = 0;  // 0: all
  double gpu_memory_gb = 0;         // 0: what is free here
  bool json = false;
};

void add_flags(CLI::App& app, PlanFlags& f) {
  app.add_option("--model_name", f.model_name,
                 "Folder with config.json, a config.json, or a hub id in the cache")
      ->required();
  app.add_option("--world_size", f.world_size, "Ranks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--ranks_per_host", f.ranks_per_host, "Of these on one host; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--gpu_memory_gb", f.gpu_memory_gb,
                 "GiB of one rank's accelerator; default: what is free here");
  app.add_option("--host_memory_gb", f.host_memory_gb,
                 "GiB of one host, for all its ranks; default: what is free here");
  app.add_flag("--json", f.json, "Print JSON instead of the table");
  add_memory_flags(app, f);
  add_config_flags(app, f);
  add_engine_flags(app, f);
}

/// --device auto: cuda with --gpu_memory_gb or a GPU.
DeviceKind device_of(const PlanFlags& f) {
  require_one_of("--device", f.device, {"auto", "cpu", "cuda", "sim"});
  if (f.device == "auto") {
    return f.gpu_memory_gb > 0 || !gpus().empty() ? DeviceKind::kCuda : DeviceKind::kCpu;
  }
  return *parse_enum<DeviceKind>(f.device);
}

RunLimits limits_of(const PlanFlags& f, DeviceKind device) {
  RunLimits limits{.ranks_per_host = f.ranks_per_host, .elsewhere = true};
  if (device == DeviceKind::kCuda) {
    limits.device_speeds = f.sim_spec.empty() ? kUsualAccelerator : parse_sim_spec(f.sim_spec);
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

HfConfig described(const std::string& name) {
  return read_hf_config(std::filesystem::is_regular_file(name) ? std::filesystem::path(name)
                                                               : resolve_model_folder(name));
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
  add_flags(app, flags);
  if (!parse_run_flags(app, flags, argc, argv)) {
    return 0;
  }
  const DeviceKind device = device_of(flags);
  check_memory_flags(flags);
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
        "micro-batch, {}, optimizer state {}\nplacement {}\n\n{}",
        flags.model_name, shape.model_type, static_cast<double>(plan.memory().parameters) / 1e9,
        name_of(config.precision()), config.zero.stage, flags.world_size,
        flags.world_size == 1 ? "" : "s", std::max<std::int64_t>(1, config.batch.micro_batch_size),
        length, device == DeviceKind::kCpu ? "on the CPU" : "on an accelerator",
        name_of(flags.engine.state_layout), plan.placement, plan.report.text(plan.limits));
  }
  if (plan.report.lacks && !flags.json) {
    fmt::print("{}", cause_of_activations(shape, plan, plan_of));
  }
  std::fflush(stdout);
  require_fit(plan.report, plan.limits, false);
  return 0;
}

}  // namespace tandem
