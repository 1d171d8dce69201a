#include "trainer/finetune/flags.hpp"

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {

namespace {

constexpr double kMostTokensOfRow = 1 << 30;  // positions that a model may have

void add_trained_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option("--freeze", f.freeze,
                 "Parameters in whose Hugging Face names this pattern is found keep their values");
  app.add_option("--lora_r", f.lora_r,
                 "Train low-rank adapters (LoRA) of this rank and freeze the rest; they are saved "
                 "in OUTPUT_DIR/adapter as PEFT does; 0: all is trained")
      ->capture_default_str();
  app.add_option("--lora_alpha", f.lora_alpha, "What adapters add is scaled by alpha / r")
      ->capture_default_str();
  app.add_option("--lora_targets", f.lora_targets,
                 "Modules that have adapters, separated by commas, or all-linear")
      ->capture_default_str();
  app.add_option("--lora_dropout", f.lora_dropout, "Dropout of the adapters' inputs")
      ->capture_default_str();
  app.add_flag("--lora_rslora", f.lora_rslora, "Scale by alpha / sqrt(r) instead");
  app.add_option("--modules_to_save", f.modules_to_save,
                 "With adapters: modules that are trained whole and saved beside them "
                 "(embed_tokens,lm_head)");
}

void check_trained_flags(const FinetuneFlags& f) {
  if (!f.lora_from.empty() && f.lora_r > 0) {
    throw user_error("flags",
                     "--lora_from {} has its own settings, and --lora_r is {}; leave that out",
                     f.lora_from, f.lora_r);
  }
  if (f.given("--lora_r")) {
    require_above_zero("--lora_r", static_cast<double>(f.lora_r), 1 << 16);
  }
  for (const char* flag :
       {"--lora_alpha", "--lora_targets", "--lora_dropout", "--lora_rslora", "--modules_to_save"}) {
    if (f.given(flag) && f.lora_r == 0) {
      throw user_error("flags", "{} is of adapters, and there are none; add --lora_r N", flag);
    }
  }
  if (!f.freeze.empty() && (f.lora_r > 0 || !f.lora_from.empty())) {
    throw user_error("flags",
                     "--freeze and adapters contradict: these freeze all else; keep one of them "
                     "(--modules_to_save names what is trained beside adapters)");
  }
  if (const TrainedParts parts = trained_parts(f); parts.lora.any()) {
    parts.lora.check();
  }
}

}  // namespace

TrainedParts trained_parts(const FinetuneFlags& f) {
  TrainedParts parts{.freeze = f.freeze};
  if (f.lora_r > 0) {
    parts.lora = {.rank = f.lora_r,
                  .alpha = f.lora_alpha,
                  .dropout = f.lora_dropout,
                  .rank_stabilised = f.lora_rslora,
                  .targets = split(f.lora_targets),
                  .modules_to_save = split(f.modules_to_save)};
  }
  return parts;
}

namespace {

/// Absent: to be chosen.
std::optional<double> offload_share(const std::string& text) {
  if (text == "auto") {
    return std::nullopt;
  }
  if (text == "on" || text == "off") {
    return text == "on" ? 1 : 0;
  }
  double share = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share >= 0 && share <= 1)) {
    throw user_error("flags",
                     "--activation_offload is \"{}\"; use auto, on, off or a share between 0 and 1",
                     text);
  }
  return share;
}

}  // namespace

void add_memory_flags(CLI::App& app, FinetuneFlags& f) {
  app.option_defaults()->group("Batch, and what is trained");
  app.add_option("--batch_size,--per_device_train_batch_size", f.batch_size,
                 "Records per micro-batch of one rank; needed where the config has none");
  app.add_option("--max_length,--max_seq_length", f.max_length,
                 "Tokens per record, longer ones are cut")
      ->capture_default_str();
  app.add_option("--sequence_parallel", f.sequence_parallel,
                 "Ranks that share each row: each computes a part of its tokens, and attends with "
                 "a part of the heads; default: the config's, and without one 1");
  app.add_option("--sequence_blocks", f.engine.sequence_blocks,
                 "Fixed blocks of each row, a power of two, by which weights' gradients are summed "
                 "over tokens, so that in fp32 on the CPU their bits do not depend on "
                 "--sequence_parallel (docs/sequence.md: where they are near instead); 0: as it is "
                 "quickest")
      ->capture_default_str();
  app.add_option("--packing", f.packing,
                 "Rows of several records, up to --max_length tokens, none of which sees another: "
                 "bfd (whole records, best fit), wrapped (plain text as one stream, cut where a "
                 "row is full), or off")
      ->capture_default_str();
  app.add_option(
      "--leaf_module", f.leaf_module,
      "Module class gathered as one unit, of a model with experts (Qwen3MoeSparseMoeBlock, "
      "Qwen3MoeMLP, GptOssExperts ...); none: a layer with all of its experts");
  app.add_flag("--activation_checkpointing", f.engine.activation_checkpointing,
               "Keep only segment boundaries; recompute in backward");
  app.add_option_function<std::string>(
         "--activation_offload",
         [&f](const std::string& text) { f.engine.activation_offload = offload_share(text); },
         "With --activation_checkpointing: share (0 to 1) of the boundaries that lie in host "
         "memory between forward and backward, beside an accelerator; on the CPU in --nvme_path. "
         "on: all that can; off: none; auto: the config's, else as few as make the run fit")
      ->default_str("auto");
  add_trained_flags(app, f);
}

void check_memory_flags(const FinetuneFlags& f) {
  if (f.given("--batch_size")) {
    require_above_zero("--batch_size", static_cast<double>(f.batch_size));
  }
  if (f.sequence_parallel) {
    require_above_zero("--sequence_parallel", static_cast<double>(*f.sequence_parallel));
  }
  require_above_zero("--max_length", static_cast<double>(f.max_length), kMostTokensOfRow);
  require_one_of("--packing", f.packing, {"off", "bfd", "wrapped"});
  check_trained_flags(f);
}

namespace {

void add_model_and_rate_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option(
      "--model_name,--model_name_or_path", f.model_name,
      "Directory in Hugging Face format, or a hub id in the local cache; none: the demo");
  app.add_option(
      "--lr,--learning_rate", f.lr,
      "Learning rate; needed with --model_name where the config has none, the demo has its "
      "own");
  app.add_option("--output_dir", f.output_dir,
                 "Where metrics, summary and model go; default: a new folder in runs/ (the demo)");
  app.add_option("--attn_implementation", f.attn_implementation,
                 "eager, sdpa or flash_attention_2: accepted; there is one attention here")
      ->capture_default_str();
  app.add_option("--recipe", f.recipe,
                 "deepspeed_example: its bits, by --append_eos off, --loss_on all, --lr_scheduler "
                 "constant and --bench_steps 100 where these are not given; or off")
      ->capture_default_str();
  app.add_option("--num_train_epochs", f.num_train_epochs,
                 "Epochs, 0.5 or 1.5, too; --steps goes before them")
      ->capture_default_str();
  app.add_option(
         "--weight_decay", f.weight_decay,
         "Decoupled weight decay of all parameters, norms and biases too, as in DeepSpeed's "
         "single group")
      ->capture_default_str();
  app.add_option("--decay_norms", f.decay_norms,
                 "off: no weight decay of norms and biases, as in Transformers' Trainer; on: as "
                 "--weight_decay says")
      ->capture_default_str();
  app.add_option("--warmup,--warmup_ratio", f.warmup,
                 "Share of the steps with a linearly rising learning rate")
      ->capture_default_str();
  app.add_option("--warmup_steps", f.warmup_steps,
                 "Instead of --warmup: the number of these steps, or below 1 their share; with "
                 "--recipe, as in the example, what --summary_skip is");
  app.add_option("--lr_scheduler,--lr_scheduler_type", f.lr_scheduler,
                 "After the warm-up: constant, linear (to 0 at the end) or cosine; a config's "
                 "scheduler decides instead")
      ->capture_default_str();
}

void add_length_and_report_flags(CLI::App& app, FinetuneFlags& f) {
  add_seed(app, f.seed, "Seed of weights, shuffle and dropout");
  app.add_flag("--deterministic", f.deterministic, "Accepted: every run is deterministic");
  add_log_interval(app, f);
  app.add_option(
         "--log_level", f.log_level,
         "DEBUG (a line for every step), INFO, WARNING or ERROR (nothing else on the console)")
      ->capture_default_str();
  add_summary_skip(app, f);
  app.add_option("--steps,--max_steps", f.steps,
                 "Stop after N optimizer steps; 0: --num_train_epochs decides")
      ->capture_default_str();
  app.add_option("--bench_steps", f.bench_steps, "Cut the epochs after N steps; 0: not at all")
      ->capture_default_str();
  app.add_flag("--samples,!--no-samples", f.samples,
               "The demo continues prompts before and after training");
  app.add_flag("--check_flags", f.check_flags,
               "Check the flags and end: ./tandem train does so before it prepares data");
  app.add_option("--lora_from", f.lora_from,
                 "Go on training the adapters of this folder, as PEFT or --lora_r saved them");
  app.add_option("--add_tokens", f.add_tokens,
                 "File with a new token in each line; embedding and head grow to a multiple of 64 "
                 "where they have no rows to spare");
  app.add_flag("--save_checkpoint", f.save_checkpoint, "Accepted: model/ is always saved");
  app.add_option("--save_dtype", f.save_dtype,
                 "Type of model/: fp32, bf16 or fp16; default: the type that computes");
}

void add_data_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option("--dataset_name", f.dataset_name,
                 ".json or .jsonl with instruction, output and maybe input, or a hub id in the "
                 "cache")
      ->capture_default_str();
  app.add_option("--dataset_percentage", f.dataset_percentage, "Use the first X percent")
      ->capture_default_str();
  app.add_option("--append_eos", f.append_eos,
                 "on: the tokenizer's end token stands behind each answer; off: only where the "
                 "tokenizer adds one")
      ->capture_default_str();
  app.add_option("--loss_on", f.loss_on,
                 "Tokens that are learnt: all, assistant or completion (all but the prompt, the "
                 "default)");
}

void add_example_flags(CLI::App& app, FinetuneFlags& f) {
  app.option_defaults()->group("Model, data and length of the run");
  add_model_and_rate_flags(app, f);
  add_length_and_report_flags(app, f);
  add_data_flags(app, f);
}

void add_evaluation_flags(CLI::App& app, EvaluationFlags& e) {
  app.option_defaults()->group("Evaluation");
  app.add_option("--eval_dataset,--validation_file", e.dataset,
                 "Records to evaluate on: the forms of --dataset_name");
  app.add_option("--eval_split", e.split,
                 "Evaluate on this share of --dataset_name's records, chosen by their hashes, and "
                 "do not train on them");
  app.add_option("--eval_every,--eval_steps", e.every,
                 "Steps between evaluations, or below 1 their share of the run; 0: an epoch")
      ->capture_default_str();
  app.add_option("--eval_batches", e.batches,
                 "Micro-batches of an evaluation, the first ones; 0: all")
      ->capture_default_str();
  app.add_flag("--eval_at_start", e.at_start, "Evaluate before the first step, too");
  app.add_option(
         "--early_stopping_patience", e.patience,
         "End the run behind this number of evaluations in a row without a better one; 0: never")
      ->capture_default_str();
  app.add_option("--early_stopping_min_delta,--early_stopping_threshold", e.min_delta,
                 "By how much a loss must be lower to be better")
      ->capture_default_str();
  app.add_flag("--keep_best", e.keep_best, "Save the best model by then in model-best/");
  app.add_option("--sample_prompt", e.sample_prompt,
                 "Continue this text at each evaluation and print it");
}

void check_evaluation_flags(const FinetuneFlags& f) {
  const EvaluationFlags& e = f.eval;
  if (!e.dataset.empty() && e.split != 0) {
    throw user_error("flags", "--eval_dataset and --eval_split contradict; keep one of them");
  }
  if (!(e.split >= 0 && e.split < 1)) {
    throw user_error("flags", "--eval_split is {}; it is a share of the records, below 1", e.split);
  }
  require_count_or_share("--eval_every", e.every);
  require_not_negative("--eval_batches", static_cast<double>(e.batches));
  require_not_negative("--early_stopping_patience", static_cast<double>(e.patience));
  require_not_negative("--early_stopping_min_delta", e.min_delta);
  for (const char* flag :
       {"--eval_every", "--eval_batches", "--eval_at_start", "--keep_best",
        "--early_stopping_patience", "--early_stopping_min_delta", "--sample_prompt"}) {
    if (f.given(flag) && !e.any()) {
      throw user_error("flags",
                       "{} needs records to evaluate on; add --eval_dataset or --eval_split, and "
                       "--eval_every N for more often than each epoch",
                       flag);
    }
  }
}

/// Sets the flags of --recipe that were not typed.
void apply_recipe(FinetuneFlags& f) {
  if (f.recipe != "deepspeed_example") {
    return;
  }
  const auto set = [&](const char* flag, auto& value, const auto& recipes) {
    if (!f.given(flag)) {
      value = recipes;
    }
  };
  set("--append_eos", f.append_eos, "off");
  set("--loss_on", f.loss_on, "all");
  set("--lr_scheduler", f.lr_scheduler, "constant");
  set("--bench_steps", f.bench_steps, 100);
  if (f.warmup_steps && *f.warmup_steps == std::floor(*f.warmup_steps)) {
    set("--summary_skip", f.summary_skip, static_cast<std::int64_t>(*f.warmup_steps));
    f.warmup_steps.reset();
  }
}

void check(const FinetuneFlags& f) {
  check_run_flags(f);
  require_one_of("--attn_implementation", f.attn_implementation,
                 {"eager", "sdpa", "flash_attention_2"});
  require_one_of("--log_level", f.log_level, {"DEBUG", "INFO", "WARNING", "ERROR"});
  require_one_of("--recipe", f.recipe, {"off", "deepspeed_example"});
  require_one_of("--lr_scheduler", f.lr_scheduler, {"constant", "linear", "cosine"});
  require_one_of("--append_eos", f.append_eos, {"on", "off"});
  require_one_of("--decay_norms", f.decay_norms, {"on", "off"});
  if (!f.loss_on.empty()) {
    require_one_of("--loss_on", f.loss_on, {"all", "assistant", "completion"});
  }
  if (!f.model_name.empty()) {
    std::vector<std::string_view> missing;
    for (const char* flag : {"--lr", "--batch_size", "--output_dir"}) {
      const bool file_may_give = std::string_view(flag) != "--output_dir";
      if (!f.given(flag) && !(file_may_give && !f.deepspeed_config.empty())) {
        missing.emplace_back(flag);
      }
    }
    if (!missing.empty()) {
      throw user_error("flags", "--model_name needs {} beside it", fmt::join(missing, " and "));
    }
  }
  if (f.given("--lr")) {
    require_above_zero("--lr", f.lr, kMostRate);
  }
  check_memory_flags(f);
  check_evaluation_flags(f);
  if (!f.save_dtype.empty()) {
    require_one_of("--save_dtype", f.save_dtype, {"fp32", "bf16", "fp16"});
  }
  require_above_zero("--num_train_epochs", f.num_train_epochs);
  require_not_negative("--bench_steps", static_cast<double>(f.bench_steps));
  require_not_negative("--weight_decay", f.weight_decay, kMostRate);
  if (!(f.warmup >= 0 && f.warmup <= 1)) {
    throw user_error("flags", "--warmup is {}; it is a share of the steps, between 0 and 1",
                     f.warmup);
  }
  require_count_or_share("--warmup_steps", f.warmup_steps.value_or(0));
  if (!(f.dataset_percentage > 0 && f.dataset_percentage <= 100)) {
    throw user_error("flags", "--dataset_percentage is {}; it must be above 0 and at most 100",
                     f.dataset_percentage);
  }
}

}  // namespace

std::optional<FinetuneFlags> parse_finetune_flags(int argc, const char* const* argv) {
  FinetuneFlags flags;
  CLI::App app(
      "Fine-tunes a Hugging Face causal language model with ZeRO-3 and a CPU-offloaded optimizer.",
      "finetune_zero3");
  add_example_flags(app, flags);
  add_evaluation_flags(app, flags.eval);
  add_memory_flags(app, flags);
  add_run_flags(app, flags);
  if (!parse_run_flags(app, flags, argc, argv)) {
    return std::nullopt;
  }
  apply_recipe(flags);
  check(flags);
  return flags.check_flags ? std::nullopt : std::optional(std::move(flags));
}

}  // namespace tandem
