#include "examples/support/run_flags.hpp"

#include <algorithm>
#include <array>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/device/device_choice.hpp"
#include "engine/memory/memory_plan.hpp"
#include "examples/support/program.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

struct Later {
  const char* flag;
  const char* what;
};
constexpr std::array kLater = {
    Later{"--bucket_mb", "buckets smaller than a unit"},
    Later{"--io_backend", "the choice of an I/O back end"},
    Later{"--resume", "checkpoints"},
    Later{"--save_every", "checkpoints"},
    Later{"--keep", "checkpoints"},
    Later{"--use_wandb", "wandb; `wandb sync` reads the TensorBoard events"},
};

void refuse_later_flags(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    for (const Later& later : kLater) {
      const std::string_view flag = later.flag;
      if (argument == flag || argument.starts_with(std::string(flag) + "=")) {
        throw user_error("flags", "{} is not in this version: it has no {}; leave it out", flag,
                         later.what);
      }
    }
  }
}

}  // namespace

bool RunFlags::given(const std::string& flag) const {
  return std::ranges::any_of(typed, [&](const auto& entry) { return entry.first == flag; });
}

void add_run_flags(CLI::App& app, RunFlags& f) {
  app.add_option("--deepspeed_config", f.deepspeed_config,
                 "DeepSpeed JSON; default: the built-in one");
  app.add_flag("--deepspeed", f.deepspeed, "Accepted: the engine is always on");
  app.add_option("--local_rank,--local-rank", "Passed by launchers; the environment decides");
  app.add_option("--dtype", f.dtype, "fp32, bf16 or fp16")->capture_default_str();
  app.add_option("--stage", f.stage, "ZeRO stage, 0 to 3")->capture_default_str();
  app.add_option("--gradient_clipping", f.gradient_clipping, "Limit of the global norm; 0: off");
  app.add_option("--gradient_accumulation_steps", f.gradient_accumulation_steps,
                 "Micro-batches per step");
  app.add_option("--device", f.device,
                 "auto (cuda where a GPU can be used, else cpu), cpu, cuda, or sim: a simulated "
                 "accelerator in real time")
      ->capture_default_str();
  app.add_option("--sim_spec", f.sim_spec,
                 "What --device sim simulates, e.g. compute=2T,h2d=50GB,d2h=50GB,hbm=3TB,"
                 "memory=16GB,latency=10us");
  app.add_option(
         "--placement", f.placement,
         "Where optimizer state lies beside an accelerator: auto (per unit, so that the step "
         "is shortest), cpu, gpu, or stream (in host memory, updated on the device)")
      ->capture_default_str();
  app.add_option(
      "--offload_ratio", f.offload_ratio,
      "Share of the optimizer's bytes (0 to 1) that stays on the host; the rest goes "
      "where --placement says, by itself to the device; default: the config's, or chosen");
  app.add_option("--overlap", f.overlap,
                 "What may run at the same time: off, comm (gathers and reductions), offload (also "
                 "the optimizer, under the next forward), full (also under its own backward)")
      ->capture_default_str();
  app.add_option("--speculate", f.speculate,
                 "With --overlap full, whether updates begin ahead of the verdict on the gradient: "
                 "auto (beside an accelerator), on or off")
      ->capture_default_str();
  app.add_option("--inflight_buckets", f.inflight_buckets,
                 "Units that may be ahead of the verdict, each with a second copy of its optimizer "
                 "state; 0: as many as a quarter of the free memory holds")
      ->capture_default_str();
  app.add_option(
         "--optimizer_state", f.optimizer_state,
         "How master weights and moments lie in memory: fp32, split (the same bits in less), "
         "bf16 or int8 (moments rounded)")
      ->capture_default_str();
  app.add_option("--forced_misses", f.forced_misses,
                 "Share of the steps (0 to 1) whose speculation is taken for lost, to measure what "
                 "that costs; no number changes")
      ->capture_default_str();
  app.add_option("--gather_slots", f.gather_slots, "Gathered units held at a time; 0: chosen")
      ->capture_default_str();
  app.add_option("--optimizer_threads", f.optimizer_threads, "Threads of the Adam pool; 0: chosen")
      ->capture_default_str();
  app.add_option("--compute_threads", f.compute_threads,
                 "Threads of the compute lane; 0: all cores")
      ->capture_default_str();
  app.add_flag(
      "--pin_cores", f.pin_cores,
      "Bind the compute lane, the Adam pool and the copies to their cores (`cores` says which)");
  app.add_option(
         "--host_memory_gb", f.host_memory_gb,
         "GiB of this host for all ranks; a run that needs more is refused; 0: what is free")
      ->capture_default_str();
  app.add_flag("--trace", f.trace, "Write trace.json.gz (Chrome, Perfetto)");
  app.add_flag("--tensorboard,!--no-tensorboard", f.tensorboard, "Write TensorBoard events");
  app.add_option("--progress", f.progress, "auto, bar, lines or off")->capture_default_str();
}

bool parse_run_flags(CLI::App& app, RunFlags& flags, int argc, const char* const* argv) {
  refuse_later_flags(argc, argv);
  if (parse_command_line(app, argc, argv)) {
    return false;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) {
      std::string text;
      for (const std::string& value : option->results()) {
        text += (text.empty() ? "" : " ") + value;
      }
      flags.typed.emplace_back("--" + option->get_lnames().front(), text);
    }
  }
  return true;
}

void require_one_of(std::string_view flag, const std::string& value,
                    std::initializer_list<std::string_view> allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) {
    return;
  }
  std::string list;
  for (const std::string_view name : allowed) {
    list += list.empty() ? "" : ", ";
    list += name;
  }
  throw user_error("flags", "{} is \"{}\"; use one of {}", flag, value, list);
}

void require_above_zero(std::string_view flag, double value) {
  if (!(value > 0)) {
    throw user_error("flags", "{} is {}; it must be above 0", flag, value);
  }
}

void require_not_negative(std::string_view flag, double value) {
  if (!(value >= 0)) {
    throw user_error("flags", "{} is {}; it must be 0 or more", flag, value);
  }
}

namespace {

void check_placement(const RunFlags& f) {
  require_one_of("--placement", f.placement, {"auto", "cpu", "gpu", "stream"});
  const double ratio = f.offload_ratio.value_or(1);
  if (!(ratio >= 0 && ratio <= 1)) {
    throw user_error("flags", "--offload_ratio is {}; it must be between 0 and 1", ratio);
  }
  if (f.placement == "cpu" && ratio < 1) {
    throw user_error("flags",
                     "--placement is cpu and --offload_ratio {}, which leaves {} of the state for "
                     "the device; leave one of them out",
                     ratio, 1 - ratio);
  }
  const bool leaves = f.placement == "gpu" || f.placement == "stream" || ratio < 1;
  if (leaves && choose_device(f.device) == DeviceKind::kCpu) {
    throw user_error(
        "flags",
        "{} needs an accelerator, and --device {} has none here; leave it out, or use --device sim "
        "for a simulated one",
        ratio < 1 ? fmt::format("--offload_ratio {}", ratio) : "--placement " + f.placement,
        f.device);
  }
}

}  // namespace

void check_run_flags(const RunFlags& f) {
  require_one_of("--overlap", f.overlap, {"off", "comm", "offload", "full"});
  require_one_of("--speculate", f.speculate, {"auto", "on", "off"});
  require_one_of("--optimizer_state", f.optimizer_state, {"fp32", "split", "bf16", "int8"});
  if (f.speculate == "on" && f.overlap != "full") {
    throw user_error("flags",
                     "--speculate on needs --overlap full, and it is {}; leave one of them out",
                     f.overlap);
  }
  require_not_negative("--inflight_buckets", f.inflight_buckets);
  if (!(f.forced_misses >= 0 && f.forced_misses <= 1)) {
    throw user_error("flags", "--forced_misses is {}; it must be between 0 and 1", f.forced_misses);
  }
  require_one_of("--progress", f.progress, {"auto", "bar", "lines", "off"});
  require_one_of("--device", f.device, {"auto", "cpu", "cuda", "sim"});
  if (f.device == "cuda") {
    (void)choose_device(f.device);  // before anything is read or made
  }
  check_placement(f);
  if (!f.sim_spec.empty() && f.device != "sim") {
    throw user_error("flags", "--sim_spec is \"{}\" and --device {}; use it with --device sim",
                     f.sim_spec, f.device);
  }
  (void)parse_sim_spec(f.sim_spec);
  if (!f.dtype.empty()) {
    require_one_of("--dtype", f.dtype, {"fp32", "bf16", "fp16"});
  }
  require_above_zero("--log_interval", static_cast<double>(f.log_interval));
  require_not_negative("--steps", static_cast<double>(f.steps));
  require_not_negative("--warmup_steps", static_cast<double>(f.warmup_steps));
  require_not_negative("--gather_slots", f.gather_slots);
  require_not_negative("--optimizer_threads", f.optimizer_threads);
  require_not_negative("--host_memory_gb", f.host_memory_gb);
  require_not_negative("--compute_threads", f.compute_threads);
}

std::vector<KeyOverride> config_overrides(const RunFlags& flags) {
  std::vector<KeyOverride> overrides;
  const auto add = [&](std::string path, std::string json, std::string flag) {
    overrides.push_back({std::move(path), std::move(json), std::move(flag)});
  };
  if (flags.given("--dtype")) {
    add("bf16.enabled", flags.dtype == "bf16" ? "true" : "false", "--dtype");
    if (flags.dtype == "fp16") {
      add("fp16.enabled", "true", "--dtype");
    }
  }
  if (flags.stage && flags.given("--stage")) {
    add("zero_optimization.stage", fmt::format("{}", *flags.stage), "--stage");
  }
  if (flags.gradient_clipping) {
    add("gradient_clipping", fmt::format("{}", *flags.gradient_clipping), "--gradient_clipping");
  }
  if (flags.gradient_accumulation_steps) {
    add("gradient_accumulation_steps", fmt::format("{}", *flags.gradient_accumulation_steps),
        "--gradient_accumulation_steps");
  }
  return overrides;
}

std::string cores_line(const CorePlan& cores, bool pinned) {
  return fmt::format("cores    {}{}", cores.text(), pinned ? "; bound" : "");
}

EngineOptions engine_options(const RunFlags& flags) {
  EngineOptions options;
  options.device = choose_device(flags.device);
  options.sim = parse_sim_spec(flags.sim_spec);
  options.overlap = flags.overlap == "off"       ? Overlap::kOff
                    : flags.overlap == "comm"    ? Overlap::kComm
                    : flags.overlap == "offload" ? Overlap::kOffload
                                                 : Overlap::kFull;
  options.speculate = flags.speculate == "on"    ? Speculate::kOn
                      : flags.speculate == "off" ? Speculate::kOff
                                                 : Speculate::kAuto;
  options.state_layout = state_layout_of(flags.optimizer_state);
  options.placement = placement_of(flags.placement);
  options.offload_ratio = flags.offload_ratio;
  options.inflight_buckets = flags.inflight_buckets;
  options.forced_misses = flags.forced_misses;
  options.gather_slots = flags.gather_slots;
  options.compute_threads = flags.compute_threads;
  options.optimizer_threads = flags.optimizer_threads;
  options.pin_cores = flags.pin_cores;
  return options;
}

}  // namespace tandem
