#include "examples/support/foreign_flags.hpp"

#include <algorithm>
#include <array>

namespace tandem {
namespace {

struct ForeignFlag {
  std::string_view name;
  std::string_view hint;
};

constexpr std::string_view kEvaluation = "here --eval_every N decides, and 0 means each epoch";
constexpr std::string_view kSaving = "here --save_every N decides, and 0 means never";
constexpr std::string_view kOptimizer =
    "the optimizer and its parameters stand in the DeepSpeed JSON (--deepspeed_config)";
constexpr std::string_view kMask = "here it is --loss_on all, assistant or completion";
constexpr std::string_view kReports =
    "metrics.jsonl and report.html are always written, TensorBoard events unless --no-tensorboard "
    "is given, and wandb is fed with --use_wandb";
constexpr std::string_view kThreads = "data is read ahead by threads that are chosen; leave it out";
constexpr std::string_view kNotHere = "it is not in this version; leave it out";
constexpr std::string_view kAlways = "it is so always; leave it out";
constexpr std::string_view kHub = "nothing is sent to the hub; leave it out";

constexpr std::array kFlags = {
    // Precision, memory, speed.
    ForeignFlag{"--bf16", "here it is --dtype bf16"},
    ForeignFlag{"--pure_bf16", "here it is --dtype bf16"},
    ForeignFlag{"--fp16", "here it is --dtype fp16"},
    ForeignFlag{"--torch_dtype", "here it is --dtype"},
    ForeignFlag{"--tf32", kNotHere},
    ForeignFlag{"--gradient_checkpointing", "here it is --activation_checkpointing"},
    ForeignFlag{"--use_gradient_checkpointing", "here it is --activation_checkpointing"},
    ForeignFlag{"--gradient_checkpointing_kwargs", "--activation_checkpointing has no settings"},
    ForeignFlag{"--flash_attn", "there is one attention here; leave it out"},
    ForeignFlag{"--use_flash_attention_2", "there is one attention here; leave it out"},
    ForeignFlag{"--use_liger_kernel", kNotHere},
    ForeignFlag{"--enable_liger_kernel", kNotHere},
    ForeignFlag{"--torch_compile", kNotHere},
    ForeignFlag{"--load_in_4bit", kNotHere},
    ForeignFlag{"--load_in_8bit", kNotHere},
    ForeignFlag{"--quantization_bit", kNotHere},
    ForeignFlag{"--bucket_mb", "there are no buckets smaller than a unit; leave it out"},
    ForeignFlag{"--ddp_timeout", "here it is the variable TANDEM_COLLECTIVE_TIMEOUT_S"},
    // Adapters.
    ForeignFlag{"--use_peft", "here --lora_r N trains adapters"},
    ForeignFlag{"--finetuning_type", "here --lora_r N trains adapters, --freeze REGEX parts"},
    ForeignFlag{"--lora_rank", "here it is --lora_r"},
    ForeignFlag{"--lora_target", "here it is --lora_targets"},
    ForeignFlag{"--lora_target_modules", "here it is --lora_targets"},
    ForeignFlag{"--target_modules", "here it is --lora_targets"},
    ForeignFlag{"--lora_modules_to_save", "here it is --modules_to_save"},
    ForeignFlag{"--additional_target", "here it is --modules_to_save"},
    ForeignFlag{"--use_rslora", "here it is --lora_rslora"},
    ForeignFlag{"--use_dora", kNotHere},
    ForeignFlag{"--adapter_name_or_path", "here it is --lora_from"},
    // Data.
    ForeignFlag{"--cutoff_len", "here it is --max_length"},
    ForeignFlag{"--template", "here it is --chat_template"},
    ForeignFlag{"--dataset", "here it is --dataset_name"},
    ForeignFlag{"--dataset_dir", "here it is --dataset_name, a file or a folder"},
    ForeignFlag{"--train_file", "here it is --dataset_name"},
    ForeignFlag{"--dataset_text_field", "here it is --columns text=NAME"},
    ForeignFlag{"--max_samples", "here it is --dataset_percentage X, of the records"},
    ForeignFlag{"--max_train_samples", "here it is --dataset_percentage X, of the records"},
    ForeignFlag{"--val_size", "here it is --eval_split"},
    ForeignFlag{"--completion_only_loss", kMask},
    ForeignFlag{"--assistant_only_loss", kMask},
    ForeignFlag{"--train_on_prompt", kMask},
    ForeignFlag{"--train_on_inputs", kMask},
    ForeignFlag{"--mask_history", kMask},
    ForeignFlag{"--packing_strategy", "here it is --packing bfd or wrapped"},
    ForeignFlag{"--neat_packing", "here it is --packing bfd, where no record sees another"},
    ForeignFlag{"--sample_packing", "here it is --packing bfd"},
    ForeignFlag{"--data_seed", "here it is --seed"},
    ForeignFlag{"--dataset_num_proc", kThreads},
    ForeignFlag{"--preprocessing_num_workers", kThreads},
    ForeignFlag{"--dataloader_num_workers", kThreads},
    ForeignFlag{"--dataloader_pin_memory", kThreads},
    ForeignFlag{"--overwrite_cache", "what is prepared is made anew where its source changed"},
    ForeignFlag{"--use_fast_tokenizer", kAlways},
    ForeignFlag{"--trust_remote_code", "no code of a model is run; leave it out"},
    ForeignFlag{"--model_revision", "here a revision follows the hub id: OWNER/NAME@REVISION"},
    // Optimizer and length.
    ForeignFlag{"--optim", kOptimizer},
    ForeignFlag{"--adam_beta1", kOptimizer},
    ForeignFlag{"--adam_beta2", kOptimizer},
    ForeignFlag{"--adam_epsilon", kOptimizer},
    ForeignFlag{"--lr_scheduler_kwargs", "schedulers with settings stand in the DeepSpeed JSON"},
    ForeignFlag{"--label_smoothing_factor", kNotHere},
    ForeignFlag{"--neftune_noise_alpha", kNotHere},
    ForeignFlag{"--group_by_length", "here --packing bfd wastes no tokens on padding"},
    // Evaluation, saving, reports.
    ForeignFlag{"--do_train", kAlways},
    ForeignFlag{"--do_eval", "here --eval_dataset or --eval_split evaluates"},
    ForeignFlag{"--eval_strategy", kEvaluation},
    ForeignFlag{"--evaluation_strategy", kEvaluation},
    ForeignFlag{"--eval_on_start", "here it is --eval_at_start"},
    ForeignFlag{"--per_device_eval_batch_size", "here it is --batch_size"},
    ForeignFlag{"--load_best_model_at_end", "here it is --keep_best"},
    ForeignFlag{"--metric_for_best_model", "the loss decides; leave it out"},
    ForeignFlag{"--greater_is_better", "the loss decides; leave it out"},
    ForeignFlag{"--save_strategy", kSaving},
    ForeignFlag{"--save_safetensors", kAlways},
    ForeignFlag{"--save_only_model", "without --save_every the model alone is saved"},
    ForeignFlag{"--report_to", kReports},
    ForeignFlag{"--plot_loss", kReports},
    ForeignFlag{"--logging_dir", kReports},
    ForeignFlag{"--logging_strategy", "here --log_interval N decides"},
    ForeignFlag{"--logging_first_step", kAlways},
    ForeignFlag{"--run_name", "here it is --wandb_run_name"},
    ForeignFlag{"--disable_tqdm", "here it is --progress off"},
    ForeignFlag{"--push_to_hub", kHub},
    ForeignFlag{"--hub_model_id", kHub},
    // Known to one trainer alone.
    ForeignFlag{"--warmup_steps",
                "the DeepSpeed JSON's scheduler decides the warm-up; --summary_skip N leaves steps "
                "out of the summary's figures"},
};

}  // namespace

std::string_view foreign_flag_hint(std::string_view flag) {
  const auto* const found = std::ranges::find(kFlags, flag, &ForeignFlag::name);
  return found == kFlags.end() ? std::string_view() : found->hint;
}

}  // namespace tandem
