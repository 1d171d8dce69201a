#include "trainer/flags/run_flags.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/tensors/device_choice.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {

namespace {

// Memory of a save beside training: enough for the largest unit of a model of some billion
// parameters.
constexpr std::size_t kStagingBytes = std::size_t{256} << 20;

}  // namespace

bool RunFlags::given(const std::string& flag) const {
  return std::ranges::any_of(typed, [&](const auto& entry) { return entry.first == flag; });
}

void add_config_flags(CLI::App& app, RunFlags& f) {
  app.option_defaults()->group("DeepSpeed config, and flags for its keys");
  app.add_option("--deepspeed_config", f.deepspeed_config,
                 "DeepSpeed JSON; default: the built-in one");
  app.add_flag("--deepspeed", f.deepspeed, "Accepted: the engine is always on");
  app.add_option("--local_rank,--local-rank", "Passed by launchers; the environment decides");
  app.add_option(
         "--dtype", f.dtype,
         "fp32, bf16 or fp16; default: the config's, and without one bf16 on a GPU, else fp32")
      ->capture_default_str();
  app.add_option("--stage", f.stage, "ZeRO stage, 0 to 3; default: the config's, and without one 3")
      ->capture_default_str();
  app.add_option("--gradient_clipping,--max_grad_norm", f.gradient_clipping,
                 "Limit of the global norm; 0: off; default: the config's, and without one 1");
  app.add_option("--gradient_accumulation_steps", f.gradient_accumulation_steps,
                 "Micro-batches per step; default: the config's, and without one 1");
}

void add_log_interval(CLI::App& app, RunFlags& f) {
  app.add_option("--log_interval,--logging_steps", f.log_interval,
                 "Steps between console lines, or below 1 their share of the run")
      ->capture_default_str();
}

void add_summary_skip(CLI::App& app, RunFlags& f) {
  app.add_option("--summary_skip", f.summary_skip,
                 "First steps that the summary's figures leave out")
      ->capture_default_str();
}

void add_run_flags(CLI::App& app, RunFlags& f) {
  add_config_flags(app, f);
  app.option_defaults()->group("Engine");
  add_engine_flags(app, f);
  app.option_defaults()->group("Checkpoints and output");
  app.add_option(
         "--host_memory_gb", f.host_memory_gb,
         "GiB of this host for all ranks; a run that needs more is refused; 0: what is free")
      ->capture_default_str();
  app.add_option("--save_every,--save_steps", f.save_every,
                 "Checkpoint every N steps, or below 1 this share of all, and at the end, in "
                 "OUTPUT_DIR/checkpoints; 0: none")
      ->capture_default_str();
  app.add_option("--keep,--save_total_limit", f.keep, "Checkpoints that stay, the newest")
      ->capture_default_str();
  app.add_option("--resume,--resume_from_checkpoint", f.resume,
                 "Go on from a checkpoint: its folder, a run's folder, or auto (the newest whole "
                 "one of --output_dir, else a fresh start)");
  app.add_flag(
      "--overwrite_output_dir", f.overwrite_output_dir,
      "Begin anew where checkpoints of a run lie that has not ended: all that it left moves "
      "to OUTPUT_DIR/earlier-N; with --resume the run goes on all the same");
  app.add_option("--resume_ignore", f.resume_ignore,
                 "Parts of the run that may be others than the checkpoint's: data,seed,batch,"
                 "optimizer");
  app.add_option("--stop_after", f.stop_after, "Save and end after this time: 90s, 45m, 3h50m");
  app.add_flag("--trace", f.trace,
               "Write trace.json.gz (Chrome, Perfetto): what every thread of every rank did in the "
               "last steps, as many as there is room for");
  app.add_option("--trace_steps", f.trace_steps,
                 "A:B: the same of the steps A to B alone; the others cost nothing");
  app.add_flag("--tensorboard,!--no-tensorboard", f.tensorboard, "Write TensorBoard events");
  app.add_option("--status_socket", f.status_socket,
                 "Serve /metrics, /step and /actors while it runs: a path, 127.0.0.1:PORT, or auto "
                 "(OUTPUT_DIR/status.sock)");
  app.add_flag("--use_wandb", f.use_wandb,
               "Feed the Python module wandb, offline unless WANDB_MODE or WANDB_API_KEY is set");
  app.add_option("--wandb_project", f.wandb_project, "Its project; default: the config's");
  app.add_option("--wandb_run_name", f.wandb_run_name, "The run's name there");
  app.add_option("--wandb_tags", f.wandb_tags, "Tags of the run there");
  app.add_option("--progress", f.progress, "auto, bar, lines or off")->capture_default_str();
  // From ./tandem train, which prepares data: FLAG=VALUE as it was typed, for the reports.
  app.add_option_function<std::vector<std::string>>(
         "--typed",
         [&f](const std::vector<std::string>& all) {
           for (const std::string& one : all) {
             const std::size_t end = std::min(one.find('='), one.size());
             f.typed.emplace_back(one.substr(0, end), one.substr(std::min(end + 1, one.size())));
           }
         })
      ->allow_extra_args(false)
      ->group("");
}

bool parse_run_flags(CLI::App& app, RunFlags& flags, int argc, const char* const* argv) {
  if (parse_command_line(app, argc, argv)) {
    return false;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) {
      const std::string name = "--" + option->get_lnames().front();
      if (name == "--typed" || flags.given(name)) {  // the latter in another way
        continue;
      }
      std::string text;
      for (const std::string& value : option->results()) {
        text += (text.empty() ? "" : " ") + value;
      }
      flags.typed.emplace_back(name, text);
    }
  }
  // As Transformers spells "the newest checkpoint", "none" and "the epochs decide".
  if (flags.resume == "True" || flags.resume == "true") {
    flags.resume = "auto";
  } else if (flags.resume == "False" || flags.resume == "false") {
    flags.resume.clear();
  }
  if (flags.steps == -1) {
    flags.steps = 0;
  }
  if (flags.save_every > 0) {
    flags.engine.checkpoint_staging_bytes = kStagingBytes;
  }
  return true;
}

void check_run_flags(const RunFlags& f) {
  require_one_of("--progress", f.progress, {"auto", "bar", "lines", "off"});
  require_one_of("--device", f.device, {"auto", "cpu", "cuda", "sim"});
  check_engine_flags(f, choose_device(f.device));  // before anything is read or made
  if (!f.sim_spec.empty() && f.device != "sim") {
    throw user_error("flags", "--sim_spec is \"{}\" and --device {}; use it with --device sim",
                     f.sim_spec, f.device);
  }
  (void)parse_traced_steps(f.trace_steps);
  if (!f.dtype.empty()) {
    require_one_of("--dtype", f.dtype, {"fp32", "bf16", "fp16"});
  }
  require_count_or_share("--save_every", f.save_every);
  require_above_zero("--keep", f.keep);
  if (!f.stop_after.empty()) {
    (void)parse_duration_s("--stop_after", f.stop_after);
  }
  if (f.resume == "auto" && f.output_dir.empty()) {
    throw user_error("flags", "--resume auto looks in --output_dir, and there is none; give one");
  }
  for (const std::string& part : split(f.resume_ignore)) {
    require_one_of("--resume_ignore", part, {"data", "seed", "batch", "optimizer"});
  }
  require_above_zero("--log_interval", f.log_interval);
  require_count_or_share("--log_interval", f.log_interval);
  require_not_negative("--steps", static_cast<double>(f.steps));
  require_not_negative("--summary_skip", static_cast<double>(f.summary_skip));
  (void)bytes_of_gib("--host_memory_gb", f.host_memory_gb);
}

bool parse_trainer_flags(const std::string& about, RunFlags& f, int argc, const char* const* argv) {
  CLI::App app(about);
  app.add_option("--output_dir", f.output_dir, "Where metrics, summary and model go")
      ->capture_default_str();
  app.add_option("--steps,--max_steps", f.steps,
                 "Stop after N optimizer steps; 0: the epochs decide")
      ->capture_default_str();
  add_seed(app, f.seed, "Seed of the shuffle");
  add_log_interval(app, f);
  add_summary_skip(app, f);
  add_run_flags(app, f);
  if (!parse_run_flags(app, f, argc, argv)) {
    return false;
  }
  check_run_flags(f);
  return true;
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
  if (flags.sequence_parallel) {
    add("sequence_parallel_size", fmt::format("{}", *flags.sequence_parallel),
        "--sequence_parallel");
  }
  if (flags.use_wandb) {
    add("wandb.enabled", "true", "--use_wandb");
  }
  if (!flags.wandb_project.empty()) {
    add("wandb.project", JsonWriter().value(flags.wandb_project).take(), "--wandb_project");
  }
  return overrides;
}

Config run_config(const RunFlags& flags, std::int64_t world_size, const std::string& builtin) {
  const ParseOptions options = {.world_size = world_size, .overrides = config_overrides(flags)};
  return flags.deepspeed_config.empty() ? parse_config(builtin, "the built-in config", options)
                                        : load_config(flags.deepspeed_config, options);
}

std::string cores_line(const CorePlan& cores, bool pinned) {
  return fmt::format("cores    {}{}", cores.text(), pinned ? "; bound" : "");
}

}  // namespace tandem
