#include "examples/support/finetune_flags.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <CLI/CLI.hpp>

#include "engine/program.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

void add_example_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option(
      "--model_name", f.model_name,
      "Directory in Hugging Face format, or a hub id in the local cache; none: the demo");
  app.add_option("--lr", f.lr, "Learning rate");
  app.add_option("--batch_size", f.batch_size, "Records per micro-batch of one rank");
  app.add_option("--output_dir", f.output_dir, "Where metrics, summary and model go");
  app.add_option("--attn_implementation", f.attn_implementation,
                 "eager, sdpa or flash_attention_2: accepted; there is one attention here")
      ->capture_default_str();
  app.add_option("--leaf_module", f.leaf_module, "Module class gathered as one unit (MoE models)");
  app.add_flag("--activation_checkpointing", f.activation_checkpointing,
               "Keep only segment borders; recompute in backward");
  app.add_option("--num_train_epochs", f.num_train_epochs, "Epochs")->capture_default_str();
  app.add_option("--max_length", f.max_length, "Tokens per record, longer ones are cut")
      ->capture_default_str();
  app.add_option("--weight_decay", f.weight_decay, "Decoupled weight decay")->capture_default_str();
  app.add_option("--warmup", f.warmup, "Share of the steps with a linearly rising learning rate")
      ->capture_default_str();
  app.add_option("--local_rank,--local-rank", "Passed by launchers; the environment decides");
  app.add_option("--seed", f.seed, "Seed of weights and shuffle")->capture_default_str();
  app.add_flag("--deterministic", f.deterministic, "Accepted: every run is deterministic");
  app.add_option("--log_interval", f.log_interval, "Steps between console lines")
      ->capture_default_str();
  app.add_option("--log_level", f.log_level, "DEBUG, INFO, WARNING or ERROR")
      ->capture_default_str();
  app.add_option("--warmup_steps", f.warmup_steps, "Steps left out of the summary's figures")
      ->capture_default_str();
  app.add_option("--bench_steps", f.bench_steps, "Stop after N steps; 0: by epochs")
      ->capture_default_str();
  app.add_flag("--save_checkpoint", f.save_checkpoint, "Accepted: model/ is always saved");
  app.add_option("--dataset_name", f.dataset_name,
                 ".json or .jsonl with instruction, input, output, or a hub id in the cache")
      ->capture_default_str();
  app.add_option("--dataset_percentage", f.dataset_percentage, "Use the first X percent")
      ->capture_default_str();
}

void add_engine_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option("--deepspeed_config", f.deepspeed_config,
                 "DeepSpeed JSON; default: ZeRO-3, SuperOffload, clipping 1.0");
  app.add_option("--steps", f.steps, "Stop after N optimizer steps; 0: --bench_steps decides")
      ->capture_default_str();
  app.add_option("--dtype", f.dtype, "fp32 or bf16 (fp16 comes later); default: from the config");
  app.add_option("--stage", f.stage, "ZeRO stage: 3 (0..2 come later)");
  app.add_option("--gradient_clipping", f.gradient_clipping, "Limit of the global norm; 0: off");
  app.add_option("--gradient_accumulation_steps", f.gradient_accumulation_steps,
                 "Micro-batches per step");
  app.add_option("--device", f.device, "auto or cpu (cuda and sim come later)")
      ->capture_default_str();
  app.add_option("--overlap", f.overlap,
                 "What may run at the same time: off, comm (gathers and reductions), offload (also "
                 "the optimizer, under the next forward)")
      ->capture_default_str();
  app.add_option("--gather_slots", f.gather_slots, "Gathered units held at a time; 0: chosen")
      ->capture_default_str();
  app.add_option("--optimizer_threads", f.optimizer_threads, "Threads of the Adam pool; 0: chosen")
      ->capture_default_str();
  app.add_option("--compute_threads", f.compute_threads,
                 "Threads of the compute lane; 0: all cores")
      ->capture_default_str();
  app.add_flag("--pin_cores", f.pin_cores, "Pin the Adam pool to the last usable cores");
  app.add_flag("--trace", f.trace, "Write trace.json.gz (Chrome, Perfetto)");
  app.add_flag("--tensorboard,!--no-tensorboard", f.tensorboard, "Write TensorBoard events");
  app.add_option("--progress", f.progress, "auto, bar, lines or off")->capture_default_str();
}

struct Later {
  const char* flag;
  const char* what;
};
constexpr std::array kLater = {
    Later{"--speculate", "speculation (--overlap full)"},
    Later{"--placement", "placement of optimizer state"},
    Later{"--offload_ratio", "placement of optimizer state"},
    Later{"--optimizer_state", "other layouts of optimizer state"},
    Later{"--bucket_mb", "buckets smaller than a unit"},
    Later{"--inflight_buckets", "speculation (--overlap full)"},
    Later{"--io_backend", "the choice of an I/O back end"},
    Later{"--sim_spec", "the simulated accelerator"},
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

template <class Number>
void require_above_zero(std::string_view flag, Number value) {
  if (!(value > 0)) {
    throw user_error("flags", "{} is {}; it must be above 0", flag, value);
  }
}

template <class Number>
void require_not_negative(std::string_view flag, Number value) {
  if (!(value >= 0)) {
    throw user_error("flags", "{} is {}; it must be 0 or more", flag, value);
  }
}

void check(const FinetuneFlags& f) {
  if (f.overlap == "full") {
    throw user_error("flags",
                     "--overlap full (speculation) is not in this version; use offload, which also "
                     "hides the optimizer, under the next forward");
  }
  require_one_of("--overlap", f.overlap, {"off", "comm", "offload"});
  require_one_of("--progress", f.progress, {"auto", "bar", "lines", "off"});
  require_one_of("--attn_implementation", f.attn_implementation,
                 {"eager", "sdpa", "flash_attention_2"});
  require_one_of("--log_level", f.log_level, {"DEBUG", "INFO", "WARNING", "ERROR"});
  if (f.device != "auto" && f.device != "cpu") {
    require_one_of("--device", f.device, {"auto", "cpu", "cuda", "sim"});
    throw user_error(
        "flags", "--device {} is not in this version, which trains on the CPU; use cpu", f.device);
  }
  if (!f.dtype.empty()) {
    require_one_of("--dtype", f.dtype, {"fp32", "bf16", "fp16"});
  }
  if (!f.model_name.empty()) {
    if (!f.given("--lr") || !f.given("--batch_size") || !f.given("--output_dir")) {
      throw user_error("flags", "--model_name needs --lr, --batch_size and --output_dir beside it");
    }
  }
  if (f.given("--lr")) {
    require_above_zero("--lr", f.lr);
  }
  if (f.given("--batch_size")) {
    require_above_zero("--batch_size", f.batch_size);
  }
  require_above_zero("--max_length", f.max_length);
  require_above_zero("--num_train_epochs", f.num_train_epochs);
  require_above_zero("--log_interval", f.log_interval);
  require_not_negative("--steps", f.steps);
  require_not_negative("--bench_steps", f.bench_steps);
  require_not_negative("--warmup_steps", f.warmup_steps);
  require_not_negative("--weight_decay", f.weight_decay);
  require_not_negative("--gather_slots", f.gather_slots);
  require_not_negative("--optimizer_threads", f.optimizer_threads);
  require_not_negative("--compute_threads", f.compute_threads);
  if (!(f.warmup >= 0 && f.warmup <= 1)) {
    throw user_error("flags", "--warmup is {}; it is a share of the steps, between 0 and 1",
                     f.warmup);
  }
  if (!(f.dataset_percentage > 0 && f.dataset_percentage <= 100)) {
    throw user_error("flags", "--dataset_percentage is {}; it must be above 0 and at most 100",
                     f.dataset_percentage);
  }
}

}  // namespace

bool FinetuneFlags::given(const std::string& flag) const {
  return std::ranges::any_of(typed, [&](const auto& entry) { return entry.first == flag; });
}

std::optional<FinetuneFlags> parse_finetune_flags(int argc, const char* const* argv) {
  FinetuneFlags flags;
  CLI::App app(
      "Fine-tunes a Hugging Face causal language model with ZeRO-3 and a CPU-offloaded optimizer.",
      "finetune_zero3");
  add_example_flags(app, flags);
  add_engine_flags(app, flags);
  refuse_later_flags(argc, argv);
  if (const std::optional<int> exit_code = parse_command_line(app, argc, argv)) {
    return std::nullopt;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) {
      flags.typed.emplace_back("--" + option->get_lnames().front(), option->as<std::string>());
    }
  }
  check(flags);
  return flags;
}

}  // namespace tandem
