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
#include "trainer/flags/flag_table.hpp"
#include "trainer/flags/flag_values.hpp"

namespace tandem {

namespace {

constexpr double kMostTokensOfRow = 1 << 30;  // positions that a model may have

FlagGroup trained_flags(FinetuneFlags& f) {
  return {
      "Batch, and what is trained",
      {
          {"--freeze", flags::text(f.freeze),
           "Parameters in whose Hugging Face names this pattern is found keep their values"},
          {"--lora_r", flags::number(f.lora_r).above_zero(1 << 16).if_given(),
           "Train low-rank adapters (LoRA) of this rank and freeze the rest; they are saved in "
           "OUTPUT_DIR/adapter as PEFT does; 0: all is trained"},
          {"--lora_alpha", flags::number(f.lora_alpha), "What adapters add is scaled by alpha / r"},
          {"--lora_targets", flags::text(f.lora_targets),
           "Modules that have adapters, separated by commas, or all-linear"},
          {"--lora_dropout", flags::number(f.lora_dropout), "Dropout of the adapters' inputs"},
          {"--lora_rslora", flags::on(f.lora_rslora), "Scale by alpha / sqrt(r) instead"},
          {"--modules_to_save", flags::text(f.modules_to_save),
           "With adapters: modules that are trained whole and saved beside them "
           "(embed_tokens,lm_head)"},
      }};
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

void check_trained_flags(const FinetuneFlags& f) {
  if (!f.lora_from.empty() && f.lora_r > 0) {
    throw user_error("flags",
                     "--lora_from {} has its own settings, and --lora_r is {}; leave that out",
                     f.lora_from, f.lora_r);
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

std::vector<FlagGroup> memory_flags(FinetuneFlags& f) {
  const auto set_offload = [&f](const std::string& text) {
    f.engine.activation_offload = offload_share(text);
  };
  FlagGroup batch{
      "Batch, and what is trained",
      {
          {"--batch_size,--per_device_train_batch_size",
           flags::number(f.batch_size).above_zero().if_given().without_default(),
           "Records per micro-batch of one rank; needed where the config has none"},
          {"--max_length,--max_seq_length",
           flags::number(f.max_length).above_zero(kMostTokensOfRow),
           "Tokens per record, longer ones are cut"},
          {"--sequence_parallel", flags::number(f.sequence_parallel).above_zero(),
           "Ranks that share each row: each computes a part of its tokens, and attends with a part "
           "of the heads; default: the config's, and without one 1"},
          {"--sequence_blocks", flags::number(f.engine.sequence_blocks),
           "Fixed blocks of each row, a power of two, by which weights' gradients are summed over "
           "tokens, so that in fp32 on the CPU their bits do not depend on --sequence_parallel "
           "(docs/sequence.md: where they are near instead); 0: as it is quickest"},
          {"--packing", flags::text(f.packing).one_of({"off", "bfd", "wrapped"}),
           "Rows of several records, up to --max_length tokens, none of which sees another: bfd "
           "(whole records, best fit), wrapped (plain text as one stream, cut where a row is "
           "full), "
           "or off"},
          {"--leaf_module", flags::text(f.leaf_module),
           "Module class gathered as one unit, of a model with experts (Qwen3MoeSparseMoeBlock, "
           "Qwen3MoeMLP, GptOssExperts ...); none: a layer with all of its experts"},
          {"--activation_checkpointing", flags::on(f.engine.activation_checkpointing),
           "Keep only segment boundaries; recompute in backward"},
          {"--activation_offload", flags::parsed(set_offload, "auto"),
           "With --activation_checkpointing: share (0 to 1) of the boundaries that lie in host "
           "memory between forward and backward, beside an accelerator; on the CPU in --nvme_path. "
           "on: all that can; off: none; auto: the config's, else as few as make the run fit"},
      }};
  return {std::move(batch), trained_flags(f)};
}

namespace {

FlagGroup model_and_rate_flags(FinetuneFlags& f) {
  return {
      "Model, data and length of the run",
      {
          {"--model_name,--model_name_or_path", flags::text(f.model_name),
           "Directory in Hugging Face format, or a hub id in the local cache; none: the demo"},
          {"--lr,--learning_rate",
           flags::number(f.lr).above_zero(kMostRate).if_given().without_default(),
           "Learning rate; needed with --model_name where the config has none, the demo has its "
           "own"},
          {"--output_dir", flags::text(f.output_dir),
           "Where metrics, summary and model go; default: a new folder in runs/ (the demo)"},
          {"--attn_implementation",
           flags::text(f.attn_implementation).one_of({"eager", "sdpa", "flash_attention_2"}),
           "eager, sdpa or flash_attention_2: accepted; there is one attention here"},
          {"--recipe", flags::text(f.recipe).one_of({"off", "deepspeed_example"}),
           "deepspeed_example: its bits, by --append_eos off, --loss_on all, --lr_scheduler "
           "constant and --bench_steps 100 where these are not given; or off"},
          {"--num_train_epochs", flags::number(f.num_train_epochs).above_zero(),
           "Epochs, 0.5 or 1.5, too; --steps goes before them"},
          {"--weight_decay", flags::number(f.weight_decay).not_negative(kMostRate),
           "Decoupled weight decay of all parameters, norms and biases too, as in DeepSpeed's "
           "single group"},
          {"--decay_norms", flags::text(f.decay_norms).one_of({"on", "off"}),
           "off: no weight decay of norms and biases, as in Transformers' Trainer; on: as "
           "--weight_decay says"},
          {"--warmup,--warmup_ratio",
           flags::number(f.warmup).share("it is a share of the steps, between 0 and 1"),
           "Share of the steps with a linearly rising learning rate"},
          {"--warmup_steps", flags::number(f.warmup_steps).count_or_share(),
           "Instead of --warmup: the number of these steps, or below 1 their share; with --recipe, "
           "as in the example, what --summary_skip is"},
          {"--lr_scheduler,--lr_scheduler_type",
           flags::text(f.lr_scheduler).one_of({"constant", "linear", "cosine"}),
           "After the warm-up: constant, linear (to 0 at the end) or cosine; a config's scheduler "
           "decides instead"},
      }};
}

FlagGroup length_and_report_flags(FinetuneFlags& f) {
  return {
      "Model, data and length of the run",
      {
          {"--seed", flags::seed(f.seed), "Seed of weights, shuffle and dropout"},
          {"--deterministic", flags::on(f.deterministic), "Accepted: every run is deterministic"},
          log_interval_flag(f),
          {"--log_level", flags::text(f.log_level).one_of({"DEBUG", "INFO", "WARNING", "ERROR"}),
           "DEBUG (a line for every step), INFO, WARNING or ERROR (nothing else on the console)"},
          summary_skip_flag(f),
          {"--steps,--max_steps", flags::number(f.steps).not_negative(),
           "Stop after N optimizer steps; 0: --num_train_epochs decides"},
          {"--bench_steps", flags::number(f.bench_steps).not_negative(),
           "Cut the epochs after N steps; 0: not at all"},
          {"--samples,!--no-samples", flags::on(f.samples),
           "The demo continues prompts before and after training"},
          {"--check_flags", flags::on(f.check_flags),
           "Check the flags and end: ./tandem train does so before it prepares data"},
          {"--lora_from", flags::text(f.lora_from),
           "Go on training the adapters of this folder, as PEFT or --lora_r saved them"},
          {"--add_tokens", flags::text(f.add_tokens),
           "File with a new token in each line; embedding and head grow to a multiple of 64 where "
           "they have no rows to spare"},
          {"--save_checkpoint", flags::on(f.save_checkpoint), "Accepted: model/ is always saved"},
          {"--save_dtype", flags::text(f.save_dtype).one_of({"fp32", "bf16", "fp16"}),
           "Type of model/: fp32, bf16 or fp16; default: the type that computes"},
      }};
}

FlagGroup data_flags(FinetuneFlags& f) {
  return {
      "Model, data and length of the run",
      {
          {"--dataset_name", flags::text(f.dataset_name),
           ".json or .jsonl with instruction, output and maybe input, or a hub id in the cache"},
          {"--dataset_percentage", flags::number(f.dataset_percentage).above_zero(100),
           "Use the first X percent"},
          {"--append_eos", flags::text(f.append_eos).one_of({"on", "off"}),
           "on: the tokenizer's end token stands behind each answer; off: only where the tokenizer "
           "adds one"},
          {"--loss_on", flags::text(f.loss_on).one_of({"all", "assistant", "completion"}),
           "Tokens that are learnt: all, assistant or completion (all but the prompt, the "
           "default)"},
      }};
}

FlagGroup evaluation_flags(EvaluationFlags& e) {
  return {
      "Evaluation",
      {
          {"--eval_dataset,--validation_file", flags::text(e.dataset),
           "Records to evaluate on: the forms of --dataset_name"},
          {"--eval_split", flags::number(e.split).without_default(),
           "Evaluate on this share of --dataset_name's records, chosen by their hashes, and do not "
           "train on them"},
          {"--eval_every,--eval_steps", flags::number(e.every).count_or_share(),
           "Steps between evaluations, or below 1 their share of the run; 0: an epoch"},
          {"--eval_batches", flags::number(e.batches).not_negative(),
           "Micro-batches of an evaluation, the first ones; 0: all"},
          {"--eval_at_start", flags::on(e.at_start), "Evaluate before the first step, too"},
          {"--early_stopping_patience", flags::number(e.patience).not_negative(),
           "End the run behind this number of evaluations in a row without a better one; 0: "
           "never"},
          {"--early_stopping_min_delta,--early_stopping_threshold",
           flags::number(e.min_delta).not_negative(),
           "By how much a loss must be lower to be better"},
          {"--keep_best", flags::on(e.keep_best), "Save the best model by then in model-best/"},
          {"--sample_prompt", flags::text(e.sample_prompt),
           "Continue this text at each evaluation and print it"},
      }};
}

void check_evaluation_flags(const FinetuneFlags& f) {
  const EvaluationFlags& e = f.eval;
  if (!e.dataset.empty() && e.split != 0) {
    throw user_error("flags", "--eval_dataset and --eval_split contradict; keep one of them");
  }
  if (!(e.split >= 0 && e.split < 1)) {
    throw user_error("flags", "--eval_split is {}; it is a share of the records, below 1", e.split);
  }
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
  check_trained_flags(f);
  check_evaluation_flags(f);
}

}  // namespace

std::optional<FinetuneFlags> parse_finetune_flags(int argc, const char* const* argv) {
  FinetuneFlags flags;
  CLI::App app(
      "Fine-tunes a Hugging Face causal language model with ZeRO-3 and a CPU-offloaded optimizer.",
      "finetune_zero3");
  FlagTable table(app);
  table.add({model_and_rate_flags(flags), length_and_report_flags(flags), data_flags(flags),
             evaluation_flags(flags.eval)});
  table.add(memory_flags(flags));
  table.add(run_flags(flags));
  if (!parse_run_flags(app, flags, argc, argv)) {
    return std::nullopt;
  }
  apply_recipe(flags);
  table.check();
  check(flags);
  return flags.check_flags ? std::nullopt : std::optional(std::move(flags));
}

}  // namespace tandem
