// `tandem plan`: what a run would hold, by purpose and kind of memory, out of config.json alone;
// whether it fits, and the smallest change that makes it fit. Nothing of the model is allocated or
// read but its description.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/config/config.hpp"
#include "engine/memory/memory_check.hpp"
#include "engine/placement/placement.hpp"
#include "engine/placement/placement_plan.hpp"
#include "examples/support/program.hpp"
#include "models/causal_lm.hpp"
#include "models/io/hf_config.hpp"
#include "models/pretrained.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/machine.hpp"
#include "tools/cli/commands.hpp"

namespace tandem {
namespace {

constexpr double kGiB = 1 << 30;

struct Flags {
  std::string model_name;
  std::string deepspeed_config;
  std::int64_t world_size = 1;
  std::int64_t ranks_per_host = 0;  // 0: all
  double gpu_memory_gb = 0;         // 0: what is free here
  double host_memory_gb = 0;
  std::string device = "auto";
  std::string dtype;
  std::optional<std::int64_t> stage, batch_size, accumulation;
  std::int64_t max_length = 2048;
  bool activation_checkpointing = false;
  int gather_slots = 0;
  std::string overlap = "full";
  int inflight_buckets = 0;
  std::string optimizer_state = "fp32";
  std::string placement = "auto";
  std::optional<double> offload_ratio;
  std::string sim_spec;
  int optimizer_threads = 0;  // 0: the usable cores
  bool json = false;
};

void add_flags(CLI::App& app, Flags& f) {
  app.add_option("--model_name", f.model_name,
                 "folder with config.json, a config.json, or a hub id in the cache")
      ->required();
  app.add_option("--deepspeed_config", f.deepspeed_config,
                 "DeepSpeed JSON; default: ZeRO-3 with the optimizer in host memory");
  app.add_option("--world_size", f.world_size, "ranks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--ranks_per_host", f.ranks_per_host, "of these on one host; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--gpu_memory_gb", f.gpu_memory_gb,
                 "GiB of one rank's accelerator; default: what is free here")
      ->check(CLI::PositiveNumber);
  app.add_option("--host_memory_gb", f.host_memory_gb,
                 "GiB of one host, for all its ranks; default: what is free here")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", f.device,
                 "auto, cpu or cuda; auto: cuda with --gpu_memory_gb or a GPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--dtype", f.dtype, "fp32, bf16 or fp16; default: bf16 on a GPU, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--stage", f.stage, "ZeRO stage, 0 to 3");
  app.add_option("--batch_size", f.batch_size, "records per micro-batch of one rank");
  app.add_option("--gradient_accumulation_steps", f.accumulation, "micro-batches per step");
  app.add_option("--max_length", f.max_length, "tokens per record")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_flag("--activation_checkpointing", f.activation_checkpointing,
               "keep only segment boundaries; recompute in backward");
  app.add_option("--gather_slots", f.gather_slots, "gathered units held at a time; 0: chosen")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--overlap", f.overlap, "off, comm, offload or full")
      ->check(CLI::IsMember({"off", "comm", "offload", "full"}))
      ->capture_default_str();
  app.add_option("--inflight_buckets", f.inflight_buckets,
                 "with --overlap full, units with a second copy of their state; 0: chosen")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--optimizer_state", f.optimizer_state, "fp32, split, bf16 or int8")
      ->check(CLI::IsMember({"fp32", "split", "bf16", "int8"}))
      ->capture_default_str();
  app.add_option("--placement", f.placement,
                 "where optimizer state lies on an accelerator: auto (so that the step is "
                 "shortest), cpu, gpu or stream")
      ->check(CLI::IsMember({"auto", "cpu", "gpu", "stream"}))
      ->capture_default_str();
  app.add_option("--offload_ratio", f.offload_ratio,
                 "share of the optimizer's bytes that stays on the host; default: the config's, or "
                 "chosen")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--sim_spec", f.sim_spec,
                 "the accelerator's speeds, for the placement, e.g. "
                 "compute=500T,h2d=50GB,d2h=50GB,hbm=4TB; default: of a PCIe 5 machine like that");
  app.add_option("--optimizer_threads", f.optimizer_threads,
                 "threads whose update speed is measured here; 0: all usable cores")
      ->check(CLI::Range(0, 1 << 12))
      ->capture_default_str();
  app.add_flag("--json", f.json, "print JSON instead of the table");
}

Config config_of(const Flags& f, const std::string& default_dtype) {
  ParseOptions options = {.world_size = f.world_size, .batch_required = false};
  const auto stands_for = [&](const char* path, const auto& value, const char* flag) {
    if (value) {
      options.overrides.push_back({path, fmt::format("{}", *value), flag});
    }
  };
  stands_for("zero_optimization.stage", f.stage, "--stage");
  stands_for("train_micro_batch_size_per_gpu", f.batch_size, "--batch_size");
  stands_for("gradient_accumulation_steps", f.accumulation, "--gradient_accumulation_steps");
  const bool own = f.deepspeed_config.empty();
  const std::string dtype = f.dtype.empty() && own ? default_dtype : f.dtype;
  if (!dtype.empty()) {
    options.overrides.push_back({"bf16.enabled", dtype == "bf16" ? "true" : "false", "--dtype"});
  }
  if (dtype == "fp16") {
    options.overrides.push_back({"fp16.enabled", "true", "--dtype"});
  }
  if (!own) {
    return load_config(f.deepspeed_config, options);
  }
  const std::string builtin = fmt::format(R"({{"train_micro_batch_size_per_gpu": {},
                       "zero_optimization": {{"stage": {},
                       "offload_optimizer": {{"device": "cpu"}}}}}})",
                                          f.batch_size.value_or(1), f.stage.value_or(3));
  return parse_config(builtin, "the built-in config", options);
}

MemoryLimits limits_of(const Flags& f, std::int64_t ranks_per_host, bool accelerator) {
  MemoryLimits limits = MemoryLimits::of_machine(ranks_per_host, accelerator);
  const auto set = [](double gib, const char* flag, std::optional<MemoryLimit>& limit) {
    if (gib > 0) {
      limit = {static_cast<std::int64_t>(gib * kGiB), flag};
    }
  };
  set(f.gpu_memory_gb, "by --gpu_memory_gb", limits.device);
  set(f.host_memory_gb, "by --host_memory_gb", limits.host);
  return limits;
}

// What no --sim_spec says: bf16 products as an H200 makes them at these shapes, PCIe 5 links, its
// memory.
constexpr SimSpec kUsualAccelerator = {.compute_flops_per_s = 500e12,
                                       .to_device_bytes_per_s = 50e9,
                                       .to_host_bytes_per_s = 50e9,
                                       .memory_bytes_per_s = 4e12};

/// Places the state where there is room for it, into `input`; what came of it in a line.
std::string place(const Model& model, const Flags& f, const Config& config,
                  const EngineOptions& options, const MemoryLimits& limits, PlanInput& input) {
  const SimSpec spec = f.sim_spec.empty() ? kUsualAccelerator : parse_sim_spec(f.sim_spec);
  const int threads = f.optimizer_threads > 0 ? f.optimizer_threads : machine::usable_cpus();
  PlacementProblem problem = placement_problem(
      model, input, PlacementHardware::of(spec, host_update_speeds(input, threads)),
      options.overlap);
  bound_memory(problem, model, input, limits);
  if (limits.device) {
    input.device_bytes = static_cast<std::size_t>(limits.device->bytes);
  }
  const std::optional<double> ratio = offload_ratio_of(config, options);
  const PlannedPlacement planned = plan_placement(model, problem, options.placement, ratio);
  if (!planned.chosen || problem.fits(planned.placements)) {
    input.placement = planned.placements;
    return planned.text(model);
  }
  return "none that fits";
}

HfConfig described(const std::string& name) {
  return read_hf_config(std::filesystem::is_regular_file(name) ? std::filesystem::path(name)
                                                               : resolve_model_folder(name));
}

}  // namespace

int run_plan(int argc, char** argv) {
  CLI::App app("The memory that a run would need, and whether it fits; nothing is allocated",
               "tandem plan");
  Flags flags;
  add_flags(app, flags);
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const HfConfig shape = described(flags.model_name);
  const bool accelerator = flags.device == "cuda" ||
                           (flags.device == "auto" && (flags.gpu_memory_gb > 0 || !gpus().empty()));
  const std::int64_t ranks_per_host = flags.ranks_per_host > 0
                                          ? std::min(flags.ranks_per_host, flags.world_size)
                                          : flags.world_size;
  const Config config = config_of(flags, accelerator ? "bf16" : "fp32");
  const EngineOptions options = {
      .device = accelerator ? DeviceKind::kCuda : DeviceKind::kCpu,
      .overlap = flags.overlap == "full" ? Overlap::kFull : Overlap::kOffload,
      .inflight_buckets = flags.inflight_buckets,
      .placement = placement_of(flags.placement),
      .offload_ratio = flags.offload_ratio,
      .activation_checkpointing = flags.activation_checkpointing,
      .gather_slots = flags.gather_slots};
  require_possible_placements(options.device, options.placement, {});
  PlanInput input = PlanInput::of(config, options, ranks_per_host);
  input.length = std::min(flags.max_length, shape.max_position_embeddings);
  input.accelerator = accelerator;
  input.state_layout = state_layout_of(flags.optimizer_state);
  const MemoryLimits limits = limits_of(flags, ranks_per_host, accelerator);
  const Model model = make_causal_lm(shape);
  const std::string placement =
      accelerator ? place(model, flags, config, options, limits, input) : "all on the host";
  const FitReport report = check_fit(model, input, limits);
  if (flags.json) {
    fmt::print("{}", report.json(limits));
  } else {
    fmt::print(
        "{} ({}): {:.2f} billion parameters, {}, ZeRO stage {}, {} rank{}, {} x {} tokens per "
        "micro-batch, {}, optimizer state {}\nplacement: {}\n\n{}",
        flags.model_name, shape.model_type, static_cast<double>(report.plan.parameters) / 1e9,
        name_of(config.precision()), config.zero.stage, flags.world_size,
        flags.world_size == 1 ? "" : "s", input.rows, input.length,
        accelerator ? "on an accelerator" : "on the CPU", flags.optimizer_state, placement,
        report.text(limits));
  }
  std::fflush(stdout);
  require_fit(report, limits, false);
  return 0;
}

}  // namespace tandem
