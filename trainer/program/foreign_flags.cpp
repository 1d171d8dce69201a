#include "trainer/program/foreign_flags.hpp"

#include <algorithm>
#include <array>

namespace tandem {
namespace {

struct ForeignFlag {
  std::string_view name;  // "--hub_*": all that begin so; the first row that fits is taken
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
constexpr std::string_view kToken = "./tandem fetch uses the variable HF_TOKEN; leave it out";
constexpr std::string_view kSplit =
    "a data set's train split is read; --eval_dataset F names what is evaluated";
constexpr std::string_view kMedia = "only text is learnt; leave it out";
constexpr std::string_view kPreferences =
    "preferences and rewards are not learnt here; leave it out";
constexpr std::string_view kOtherEngine = "there is one engine here; leave it out";
constexpr std::string_view kRanks = "here ./tandem train -n N or ./tandem launch starts the ranks";
constexpr std::string_view kStreams = "data is read as it is needed; leave it out";
constexpr std::string_view kTimes = "here it is --trace_steps FIRST:LAST";
constexpr std::string_view kExport = "here ./tandem merge and ./tandem convert write other forms";
constexpr std::string_view kOneRank = "one rank writes; leave it out";
constexpr std::string_view kPrepares =
    "./tandem train, ./tandem launch -n and ./tandem prepare take it, and make the token file that "
    "this program reads";
constexpr std::string_view kVariables = "a record's chat_template_kwargs gives it; leave it out";

constexpr auto kFlags = std::to_array<ForeignFlag>({
    // Precision, memory, speed.
    ForeignFlag{"--ddp_timeout", "here it is the variable TANDEM_COLLECTIVE_TIMEOUT_S"},
    ForeignFlag{"--bf16_full_eval", kAlways},
    ForeignFlag{"--fp16_full_eval", kAlways},
    ForeignFlag{"--torch_compile_*", kNotHere},
    ForeignFlag{"--liger_kernel_config", kNotHere},
    ForeignFlag{"--use_cache", "training keeps no cache of keys; leave it out"},
    ForeignFlag{"--use_kv_cache", "training keeps no cache of keys; leave it out"},
    ForeignFlag{"--torch_empty_cache_steps", kAlways},
    ForeignFlag{"--auto_find_batch_size", "./tandem plan says what fits; leave it out"},
    ForeignFlag{"--full_determinism", "here it is --deterministic"},
    ForeignFlag{"--use_cpu", "here it is --device cpu"},
    ForeignFlag{"--no_cuda", "here it is --device cpu"},
    ForeignFlag{"--compute_dtype", "here it is --dtype"},
    ForeignFlag{"--infer_dtype", "here it is --dtype"},
    ForeignFlag{"--low_cpu_mem_usage", kAlways},
    ForeignFlag{"--device_map", "--placement and the DeepSpeed JSON say where what lies"},
    ForeignFlag{"--disable_gradient_checkpointing",
                "it is off unless --activation_checkpointing is given; leave it out"},
    ForeignFlag{"--use_reentrant_gc", "--activation_checkpointing has no settings"},
    ForeignFlag{"--activation_offloading", "here it is --activation_offload on"},
    ForeignFlag{"--upcast_*", kNotHere},
    ForeignFlag{"--fp8*", kNotHere},
    ForeignFlag{"--bnb_*", kNotHere},
    ForeignFlag{"--use_bnb_nested_quant", kNotHere},
    ForeignFlag{"--quantization_*", kNotHere},
    ForeignFlag{"--double_quantization", kNotHere},
    ForeignFlag{"--shift_attn", kNotHere},
    ForeignFlag{"--mixture_of_depths", kNotHere},
    ForeignFlag{"--use_unsloth*", kOtherEngine},
    ForeignFlag{"--use_v1_kernels", kOtherEngine},
    ForeignFlag{"--use_mca", kOtherEngine},
    ForeignFlag{"--use_megatron_bridge", kOtherEngine},
    ForeignFlag{"--megatron_bridge_args", kOtherEngine},
    ForeignFlag{"--use_hyper_parallel", kOtherEngine},
    ForeignFlag{"--hyper_parallel_*", kOtherEngine},
    ForeignFlag{"--use_kt", kOtherEngine},
    ForeignFlag{"--kt_*", kOtherEngine},
    ForeignFlag{"--vllm_*", kOtherEngine},
    ForeignFlag{"--sglang_*", kOtherEngine},
    ForeignFlag{"--infer_backend", kOtherEngine},
    ForeignFlag{"--fsdp*", kOtherEngine},
    ForeignFlag{"--accelerator_config", kOtherEngine},
    ForeignFlag{"--parallelism_config", "here it is --sequence_parallel"},
    ForeignFlag{"--ddp_*", "the engine exchanges what is needed; leave it out"},
    ForeignFlag{"--average_tokens_across_devices", "here it is --loss_mean tokens"},
    ForeignFlag{"--offload_folder", "here it is --nvme_path"},
    ForeignFlag{"--master_addr", kRanks},
    ForeignFlag{"--master_port", kRanks},
    ForeignFlag{"--ray_*", kRanks},
    ForeignFlag{"--enable_torch_profiler", kTimes},
    ForeignFlag{"--profiler_*", kTimes},
    ForeignFlag{"--profile_modules", kTimes},
    ForeignFlag{"--debug", "here it is --log_level DEBUG"},
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
    ForeignFlag{"--bucket_mb", "there are no buckets smaller than a unit; leave it out"},
    // Adapters.
    ForeignFlag{
        "--lora_target_parameters",
        "adapters of stacked experts are merged by ./tandem merge and not trained; leave it out"},
    ForeignFlag{"--lora_task_type", kAlways},
    ForeignFlag{"--adapter_folder", "here it is --lora_from"},
    ForeignFlag{"--create_new_adapter", "./tandem merge first, then --lora_r N trains a new one"},
    ForeignFlag{"--pissa_*", kNotHere},
    ForeignFlag{"--loraplus_*", kNotHere},
    ForeignFlag{"--oft_*", kNotHere},
    ForeignFlag{"--module_dropout", kNotHere},
    ForeignFlag{"--freeze_trainable_layers", "here it is --freeze REGEX, of parameter names"},
    ForeignFlag{"--freeze_trainable_modules", "here it is --freeze REGEX, of parameter names"},
    ForeignFlag{"--freeze_extra_modules", "here it is --freeze REGEX, of parameter names"},
    ForeignFlag{"--freeze_language_model", "here it is --freeze REGEX, of parameter names"},
    ForeignFlag{"--freeze_vision_tower", kMedia},
    ForeignFlag{"--freeze_multi_modal_projector", kMedia},
    ForeignFlag{"--use_llama_pro", kNotHere},
    ForeignFlag{"--train_from_scratch", kNotHere},
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
    ForeignFlag{"--chat_template_path", "here it is --chat_template"},
    ForeignFlag{"--dataset_kwargs", "here --columns and --dataset_format say how records are read"},
    ForeignFlag{"--dataset_train_split", kSplit},
    ForeignFlag{"--dataset_test_split", kSplit},
    ForeignFlag{"--dataset_split", kSplit},
    ForeignFlag{"--split", kSplit},
    ForeignFlag{"--test_split_size", "here it is --eval_split"},
    ForeignFlag{"--path", "here it is --dataset_name"},
    ForeignFlag{"--name", "here it is --dataset_config"},
    ForeignFlag{"--data_dir", "here it is --dataset_name"},
    ForeignFlag{"--data_files", "here it is --dataset_name"},
    ForeignFlag{"--datasets", "here it is --dataset_name a.jsonl:0.7,b.jsonl:0.3"},
    ForeignFlag{"--fraction", "here it is --dataset_percentage X"},
    ForeignFlag{"--dataset_streaming", kStreams},
    ForeignFlag{"--streaming", kStreams},
    ForeignFlag{"--buffer_size", kStreams},
    ForeignFlag{"--mix_strategy", "here it is --dataset_name a.jsonl:0.7,b.jsonl:0.3"},
    ForeignFlag{"--interleave_probs", "here it is --dataset_name a.jsonl:0.7,b.jsonl:0.3"},
    ForeignFlag{"--media_dir", kMedia},
    ForeignFlag{"--image_*", kMedia},
    ForeignFlag{"--video_*", kMedia},
    ForeignFlag{"--audio_*", kMedia},
    ForeignFlag{"--use_audio_in_video", kMedia},
    ForeignFlag{"--crop_to_patches", kMedia},
    ForeignFlag{"--preprocessing_batch_size", kThreads},
    ForeignFlag{"--dataloader_*", kThreads},
    ForeignFlag{"--data_shared_file_system", kThreads},
    ForeignFlag{"--ignore_pad_token_for_loss", kAlways},
    ForeignFlag{"--eval_on_each_dataset", kNotHere},
    ForeignFlag{"--tool_format", "the chat template writes tools; leave it out"},
    ForeignFlag{"--default_system",
                "give each record a system message, or change the chat template"},
    ForeignFlag{"--enable_thinking", kVariables},
    ForeignFlag{"--preserve_thinking", kVariables},
    ForeignFlag{
        "--tokenized_path",
        "./tandem prepare --output X.tokens writes one, and --dataset_name X.tokens reads it"},
    ForeignFlag{"--eos_token", "the end token is tokenizer_config.json's; write it there"},
    ForeignFlag{"--pad_token", "the padding token is tokenizer_config.json's; write it there"},
    ForeignFlag{"--truncation_mode", "rows are cut behind --max_length tokens; leave it out"},
    ForeignFlag{"--shuffle_dataset", kAlways},
    ForeignFlag{"--disable_shuffling", "records are shuffled by --seed; leave it out"},
    ForeignFlag{"--padding_free", "here it is --packing bfd"},
    ForeignFlag{"--eval_packing", "what is evaluated is packed as it needs to be; leave it out"},
    ForeignFlag{"--pad_to_multiple_of", kNotHere},
    ForeignFlag{"--remove_unused_columns", kAlways},
    ForeignFlag{"--label_names", "here labels are a token record's member labels"},
    ForeignFlag{"--train_sampling_strategy", "records are shuffled by --seed; leave it out"},
    ForeignFlag{"--length_column_name", kNotHere},
    ForeignFlag{"--include_num_input_tokens_seen", kAlways},
    ForeignFlag{"--include_effective_tokens_per_second", kAlways},
    ForeignFlag{"--model_max_length", "here it is --max_length"},
    ForeignFlag{"--split_special_tokens", "it is tokenizer_config.json's; write it there"},
    ForeignFlag{"--resize_vocab", "--add_tokens grows the vocabulary; leave it out"},
    ForeignFlag{"--add_special_tokens", "here it is --add_tokens"},
    ForeignFlag{"--new_special_tokens_config", "here it is --add_tokens"},
    ForeignFlag{"--init_special_tokens", "here it is --add_tokens"},
    ForeignFlag{"--cache_dir", "here it is the variable HF_HOME"},
    ForeignFlag{"--hf_hub_token", kToken},
    ForeignFlag{"--ms_hub_token", kToken},
    ForeignFlag{"--om_hub_token", kToken},
    ForeignFlag{"--rope_scaling", "it is config.json's; write it there"},
    ForeignFlag{"--model_init_kwargs", "they are config.json's; write them there"},
    ForeignFlag{"--block_diag_attn", "here it is --packing bfd, where no record sees another"},
    ForeignFlag{"--print_param_status", kNotHere},
    ForeignFlag{"--ignore_bias_buffers", kNotHere},
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
    ForeignFlag{"--overwrite_cache", "what is prepared is made anew where its source changed"},
    ForeignFlag{"--use_fast_tokenizer", kAlways},
    ForeignFlag{"--trust_remote_code", "no code of a model is run; leave it out"},
    ForeignFlag{"--model_revision", "here a revision follows the hub id: OWNER/NAME@REVISION"},
    // Optimizer and length.
    ForeignFlag{"--optim_args", kOptimizer},
    ForeignFlag{"--optim_target_modules", kOptimizer},
    ForeignFlag{"--use_muon", kOptimizer},
    ForeignFlag{"--use_adam_mini", kNotHere},
    ForeignFlag{"--use_galore", kNotHere},
    ForeignFlag{"--galore_*", kNotHere},
    ForeignFlag{"--use_apollo", kNotHere},
    ForeignFlag{"--apollo_*", kNotHere},
    ForeignFlag{"--use_badam", kNotHere},
    ForeignFlag{"--badam_*", kNotHere},
    ForeignFlag{"--loss_type", kNotHere},
    ForeignFlag{"--use_dft_loss", kNotHere},
    ForeignFlag{"--use_asft_loss", kNotHere},
    ForeignFlag{"--asft_alpha", kNotHere},
    ForeignFlag{"--use_eaft_loss", kNotHere},
    ForeignFlag{"--eaft_alpha", kNotHere},
    ForeignFlag{"--router_aux_loss_coef", "it is config.json's; write it there"},
    ForeignFlag{"--moe_aux_loss_coef", "it is config.json's router_aux_loss_coef; write it there"},
    ForeignFlag{"--pref_*", kPreferences},
    ForeignFlag{"--dpo_label_smoothing", kPreferences},
    ForeignFlag{"--kto_*", kPreferences},
    ForeignFlag{"--simpo_gamma", kPreferences},
    ForeignFlag{"--ppo_*", kPreferences},
    ForeignFlag{"--ref_model*", kPreferences},
    ForeignFlag{"--reward_model*", kPreferences},
    ForeignFlag{"--ld_alpha", kPreferences},
    ForeignFlag{"--optim", kOptimizer},
    ForeignFlag{"--adam_beta1", kOptimizer},
    ForeignFlag{"--adam_beta2", kOptimizer},
    ForeignFlag{"--adam_epsilon", kOptimizer},
    ForeignFlag{"--lr_scheduler_kwargs", "schedulers with settings stand in the DeepSpeed JSON"},
    ForeignFlag{"--label_smoothing_factor", kNotHere},
    ForeignFlag{"--neftune_noise_alpha", kNotHere},
    ForeignFlag{"--group_by_length", "here --packing bfd wastes no tokens on padding"},
    // Evaluation, saving, reports.
    ForeignFlag{"--do_predict", "./tandem generate answers prompts"},
    ForeignFlag{"--eval_delay", kEvaluation},
    ForeignFlag{"--prediction_loss_only", kAlways},
    ForeignFlag{"--eval_do_concat_batches", kAlways},
    ForeignFlag{"--eval_use_gather_object", kAlways},
    ForeignFlag{"--eval_accumulation_steps", kAlways},
    ForeignFlag{"--eval_num_beams", kNotHere},
    ForeignFlag{"--include_for_metrics", kAlways},
    ForeignFlag{"--batch_eval_metrics", kAlways},
    ForeignFlag{"--compute_accuracy", kNotHere},
    ForeignFlag{"--early_stopping_steps", "here it is --early_stopping_patience"},
    ForeignFlag{"--save_on_each_node", kOneRank},
    ForeignFlag{"--log_on_each_node", kOneRank},
    ForeignFlag{"--log_level_replica", kOneRank},
    ForeignFlag{"--enable_jit_checkpoint", "SIGUSR1 saves a checkpoint; leave it out"},
    ForeignFlag{"--ignore_data_skip", "--resume goes on with the next record; leave it out"},
    ForeignFlag{"--restore_callback_states_from_checkpoint", kAlways},
    ForeignFlag{"--logging_nan_inf_filter",
                "steps whose gradient is not finite are counted and left out"},
    ForeignFlag{"--skip_memory_metrics", kReports},
    ForeignFlag{"--project", "here it is --wandb_project"},
    ForeignFlag{"--trackio_*", kReports},
    ForeignFlag{"--use_swanlab", kReports},
    ForeignFlag{"--swanlab_*", kReports},
    ForeignFlag{"--hub_*", kHub},
    ForeignFlag{"--export_*", kExport},
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
    // The commands that make a token file take these.
    ForeignFlag{"--dataset_format", kPrepares},
    ForeignFlag{"--chat_template", kPrepares},
    ForeignFlag{"--dataset_config", kPrepares},
    ForeignFlag{"--columns", kPrepares},
    ForeignFlag{"--sample_by", kPrepares},
    ForeignFlag{"--skip_refused", kPrepares},
    // Known to one trainer alone.
    ForeignFlag{"--warmup_steps",
                "the DeepSpeed JSON's scheduler decides the warm-up; --summary_skip N leaves steps "
                "out of the summary's figures"},
});

}  // namespace

std::string_view foreign_flag_hint(std::string_view flag) {
  const auto* const found = std::ranges::find_if(kFlags, [flag](const ForeignFlag& row) {
    return row.name.ends_with('*') ? flag.starts_with(row.name.substr(0, row.name.size() - 1))
                                   : flag == row.name;
  });
  return found == kFlags.end() ? std::string_view() : found->hint;
}

std::string_view foreign_value_hint(std::string_view flag, std::string_view value) {
  constexpr std::array<std::string_view, 6> kTasks = {"pt", "sft", "rm", "ppo", "dpo", "kto"};
  const bool is_task = flag == "--stage" && std::ranges::find(kTasks, value) != kTasks.end();
  return is_task ? "here it is ZeRO's stage, and records and --loss_on decide what is learnt"
                 : std::string_view();
}

}  // namespace tandem
