#include "trainer/flags/run_flags.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/tensors/device_choice.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

namespace {

// Memory of a save beside training: enough for the largest unit of a model of some billion
// parameters.
constexpr std::size_t kStagingBytes = std::size_t{256} << 20;

}  // namespace

bool RunFlags::given(const std::string& flag) const {
  return std::ranges::any_of(typed, [&](const auto& entry) { return entry.first == flag; });
}

FlagGroup config_flags(RunFlags& f) {
  return {
      "DeepSpeed config, and flags for its keys",
      {
          {"--deepspeed_config", flags::text(f.deepspeed_config),
           "DeepSpeed JSON; default: the built-in one"},
          {"--deepspeed", flags::on(f.deepspeed), "Accepted: the engine is always on"},
          {"--local_rank,--local-rank", flags::ignored(),
           "Passed by launchers; the environment decides"},
          {"--dtype", flags::text(f.dtype).one_of({"fp32", "bf16", "fp16"}),
           "fp32, bf16 or fp16; default: the config's, and without one bf16 on a GPU, else fp32"},
          {"--stage", flags::number(f.stage),
           "ZeRO stage, 0 to 3; default: the config's, and without one 3"},
          {"--gradient_clipping,--max_grad_norm", flags::number(f.gradient_clipping),
           "Limit of the global norm; 0: off; default: the config's, and without one 1"},
          {"--gradient_accumulation_steps", flags::number(f.gradient_accumulation_steps),
           "Micro-batches per step; default: the config's, and without one 1"},
      }};
}

FlagRow log_interval_flag(RunFlags& f) {
  return {"--log_interval,--logging_steps",
          flags::number(f.log_interval).above_zero().count_or_share(),
          "Steps between console lines, or below 1 their share of the run"};
}

FlagRow summary_skip_flag(RunFlags& f) {
  return {"--summary_skip", flags::number(f.summary_skip).not_negative(),
          "First steps that the summary's figures leave out"};
}

namespace {

/// From ./tandem train, which prepares data: FLAG=VALUE as it was typed, for the reports. --help
/// does not list it.
FlagValue typed_flags(RunFlags& f) {
  return FlagValue([&f](CLI::App& app, const std::string& names, const std::string& help) {
    const auto take = [&f](const std::vector<std::string>& all) {
      for (const std::string& one : all) {
        const std::size_t end = std::min(one.find('='), one.size());
        f.typed.emplace_back(one.substr(0, end), one.substr(std::min(end + 1, one.size())));
      }
    };
    return app.add_option_function<std::vector<std::string>>(names, take, help)
        ->allow_extra_args(false)
        ->group("");
  });
}

FlagGroup output_flags(RunFlags& f) {
  const auto is_steps = [](const std::string& text) { (void)parse_traced_steps(text); };
  const auto is_time = [](const std::string& text) {
    (void)parse_duration_s("--stop_after", text);
  };
  return {
      "Checkpoints and output",
      {
          {"--host_memory_gb", flags::number(f.host_memory_gb).not_negative(kMostGib),
           "GiB of this host for all ranks; a run that needs more is refused; 0: what is free"},
          {"--save_every,--save_steps", flags::number(f.save_every).count_or_share(),
           "Checkpoint every N steps, or below 1 this share of all, and at the end, in "
           "OUTPUT_DIR/checkpoints; 0: none"},
          {"--keep,--save_total_limit", flags::number(f.keep).above_zero(),
           "Checkpoints that stay, the newest"},
          {"--resume,--resume_from_checkpoint", flags::text(f.resume),
           "Go on from a checkpoint: its folder, a run's folder, or auto (the newest whole one of "
           "--output_dir, else a fresh start)"},
          {"--overwrite_output_dir", flags::on(f.overwrite_output_dir),
           "Begin anew where checkpoints of a run lie that has not ended: all that it left moves "
           "to OUTPUT_DIR/earlier-N; with --resume the run goes on all the same"},
          {"--resume_ignore",
           flags::text(f.resume_ignore).list_of({"data", "seed", "batch", "optimizer"}),
           "Parts of the run that may be others than the checkpoint's: data,seed,batch,optimizer"},
          {"--stop_after", flags::text(f.stop_after).checked_by(is_time),
           "Save and end after this time: 90s, 45m, 3h50m"},
          {"--trace", flags::on(f.trace),
           "Write trace.json.gz (Chrome, Perfetto): what every thread of every rank did in the "
           "last steps, as many as there is room for"},
          {"--trace_steps", flags::text(f.trace_steps).checked_by(is_steps),
           "A:B: the same of the steps A to B alone; the others cost nothing"},
          {"--tensorboard,!--no-tensorboard", flags::on(f.tensorboard), "Write TensorBoard events"},
          {"--status_socket", flags::text(f.status_socket),
           "Serve /metrics, /step and /actors while it runs: a path, 127.0.0.1:PORT, or auto "
           "(OUTPUT_DIR/status.sock)"},
          {"--use_wandb", flags::on(f.use_wandb),
           "Feed the Python module wandb, offline unless WANDB_MODE or WANDB_API_KEY is set"},
          {"--wandb_project", flags::text(f.wandb_project), "Its project; default: the config's"},
          {"--wandb_run_name", flags::text(f.wandb_run_name), "The run's name there"},
          {"--wandb_tags", flags::texts(f.wandb_tags), "Tags of the run there"},
          {"--progress", flags::text(f.progress).one_of({"auto", "bar", "lines", "off"}),
           "auto, bar, lines or off"},
          {"--typed", typed_flags(f), ""},
      }};
}

}  // namespace

std::vector<FlagGroup> run_flags(RunFlags& f) {
  return {config_flags(f), engine_flags(f), output_flags(f)};
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
  check_engine_flags(f, choose_device(f.device));  // before anything is read or made
  if (!f.sim_spec.empty() && f.device != "sim") {
    throw user_error("flags", "--sim_spec is \"{}\" and --device {}; use it with --device sim",
                     f.sim_spec, f.device);
  }
  if (f.resume == "auto" && f.output_dir.empty()) {
    throw user_error("flags", "--resume auto looks in --output_dir, and there is none; give one");
  }
}

bool parse_trainer_flags(const std::string& about, RunFlags& f, int argc, const char* const* argv) {
  CLI::App app(about);
  FlagTable table(app);
  table.add({"",
             {{"--output_dir", flags::text(f.output_dir), "Where metrics, summary and model go"},
              {"--steps,--max_steps", flags::number(f.steps).not_negative(),
               "Stop after N optimizer steps; 0: the epochs decide"},
              {"--seed", flags::seed(f.seed), "Seed of the shuffle"},
              log_interval_flag(f),
              summary_skip_flag(f)}});
  table.add(run_flags(f));
  if (!parse_run_flags(app, f, argc, argv)) {
    return false;
  }
  table.check();
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
