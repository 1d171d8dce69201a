#include "examples/support/finetune_flags.hpp"

#include <CLI/CLI.hpp>

#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr double kMostTokensOfRow = 1 << 30;  // positions that a model may have

}  // namespace

void add_memory_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option("--batch_size", f.batch_size, "Records per micro-batch of one rank");
  app.add_option("--max_length", f.max_length, "Tokens per record, longer ones are cut")
      ->capture_default_str();
  app.add_option(
      "--leaf_module", f.leaf_module,
      "Module class gathered as one unit, of a model with experts (Qwen3MoeSparseMoeBlock, "
      "Qwen3MoeMLP, GptOssExperts ...); none: a layer with all of its experts");
  app.add_flag("--activation_checkpointing", f.engine.activation_checkpointing,
               "Keep only segment boundaries; recompute in backward");
}

void check_memory_flags(const FinetuneFlags& f) {
  if (f.given("--batch_size")) {
    require_above_zero("--batch_size", static_cast<double>(f.batch_size));
  }
  require_above_zero("--max_length", static_cast<double>(f.max_length), kMostTokensOfRow);
}

namespace {

void add_example_flags(CLI::App& app, FinetuneFlags& f) {
  app.add_option(
      "--model_name", f.model_name,
      "Directory in Hugging Face format, or a hub id in the local cache; none: the demo");
  app.add_option("--lr", f.lr, "Learning rate");
  app.add_option("--output_dir", f.output_dir, "Where metrics, summary and model go");
  app.add_option("--attn_implementation", f.attn_implementation,
                 "eager, sdpa or flash_attention_2: accepted; there is one attention here")
      ->capture_default_str();
  app.add_option("--num_train_epochs", f.num_train_epochs, "Epochs")->capture_default_str();
  app.add_option("--weight_decay", f.weight_decay, "Decoupled weight decay")->capture_default_str();
  app.add_option("--warmup", f.warmup, "Share of the steps with a linearly rising learning rate")
      ->capture_default_str();
  app.add_option("--seed", f.seed, "Seed of weights, shuffle and dropout")->capture_default_str();
  app.add_flag("--deterministic", f.deterministic, "Accepted: every run is deterministic");
  app.add_option("--log_interval", f.log_interval, "Steps between console lines")
      ->capture_default_str();
  app.add_option("--log_level", f.log_level, "DEBUG, INFO, WARNING or ERROR")
      ->capture_default_str();
  app.add_option("--warmup_steps", f.warmup_steps, "Steps left out of the summary's figures")
      ->capture_default_str();
  app.add_option("--steps", f.steps, "Stop after N optimizer steps; 0: --bench_steps decides")
      ->capture_default_str();
  app.add_option("--bench_steps", f.bench_steps, "Stop after N steps; 0: by epochs")
      ->capture_default_str();
  app.add_flag("--samples,!--no-samples", f.samples,
               "The demo continues prompts before and after training");
  app.add_flag("--save_checkpoint", f.save_checkpoint, "Accepted: model/ is always saved");
  app.add_option("--save_dtype", f.save_dtype,
                 "Type of model/: fp32, bf16 or fp16; default: the type that computes");
  app.add_option("--dataset_name", f.dataset_name,
                 ".json or .jsonl with instruction, input, output, or a hub id in the cache")
      ->capture_default_str();
  app.add_option("--dataset_percentage", f.dataset_percentage, "Use the first X percent")
      ->capture_default_str();
}

void check(const FinetuneFlags& f) {
  check_run_flags(f);
  require_one_of("--attn_implementation", f.attn_implementation,
                 {"eager", "sdpa", "flash_attention_2"});
  require_one_of("--log_level", f.log_level, {"DEBUG", "INFO", "WARNING", "ERROR"});
  if (!f.model_name.empty()) {
    if (!f.given("--lr") || !f.given("--batch_size") || !f.given("--output_dir")) {
      throw user_error("flags", "--model_name needs --lr, --batch_size and --output_dir beside it");
    }
  }
  if (f.given("--lr")) {
    require_above_zero("--lr", f.lr, kMostRate);
  }
  check_memory_flags(f);
  if (!f.save_dtype.empty()) {
    require_one_of("--save_dtype", f.save_dtype, {"fp32", "bf16", "fp16"});
  }
  require_above_zero("--num_train_epochs", static_cast<double>(f.num_train_epochs));
  require_not_negative("--bench_steps", static_cast<double>(f.bench_steps));
  require_not_negative("--weight_decay", f.weight_decay, kMostRate);
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

std::optional<FinetuneFlags> parse_finetune_flags(int argc, const char* const* argv) {
  FinetuneFlags flags;
  CLI::App app(
      "Fine-tunes a Hugging Face causal language model with ZeRO-3 and a CPU-offloaded optimizer.",
      "finetune_zero3");
  add_example_flags(app, flags);
  add_memory_flags(app, flags);
  add_run_flags(app, flags);
  if (!parse_run_flags(app, flags, argc, argv)) {
    return std::nullopt;
  }
  check(flags);
  return flags;
}

}  // namespace tandem
