// Keys that are accepted with any value and ignored: keys of older versions of DeepSpeed, keys that
// other trainers keep in the same file, and comments.
#include <algorithm>
#include <array>

#include "engine/config/key_table.hpp"

namespace tandem {
namespace {

constexpr std::string_view kNote = "a note of its writer";
constexpr std::string_view kFlags =
    "DeepSpeed does not read it, either; flags of the program decide (--help)";
constexpr std::string_view kNoScale = "bf16 has the range of fp32 and needs no loss scale";
constexpr std::string_view kMixed = "an option of apex; fp16 and bf16 decide what computes";
constexpr std::string_view kOneBit = "of a compressed optimizer; this one has no such phase";
constexpr std::string_view kLinks = "ranks meet by the environment, over the links there are";
constexpr std::string_view kUnsplit = "of layers split over ranks, which autotp_size refuses here";
constexpr std::string_view kMisplaced =
    "DeepSpeed does not read it here, either; its place is optimizer.params";

constexpr std::array<LeftKey, 127> kLeft = {{
    // Spellings and keys of older versions.
    {"amp.*", "apex is not here: fp16 and bf16 decide what computes"},
    {"fp16.opt_level", kMixed},
    {"fp16.fp16_scale_tolerance", "the loss scale falls at each overflow (fp16.hysteresis)"},
    {"fp16_scale_tolerance", "the loss scale falls at each overflow (fp16.hysteresis)"},
    {"fp16.scale_tolerance", "the loss scale falls at each overflow (fp16.hysteresis)"},
    {"fp16.master_weights", "master weights are fp32 always"},
    {"bf16.loss_scale", kNoScale},
    {"bf16.initial_scale_power", kNoScale},
    {"bf16.loss_scale_window", kNoScale},
    {"bf16.hysteresis", kNoScale},
    {"bf16.consecutive_hysteresis", kNoScale},
    {"bf16.min_loss_scale", kNoScale},
    {"bf16.auto_cast", "inputs are cast where the model needs it"},
    {"bf16.opt_level", kMixed},
    {"bf16.type", "an old name without effect"},
    {"bfloat16.loss_scale", kNoScale},
    {"bfloat16.initial_scale_power", kNoScale},
    {"bfloat16.loss_scale_window", kNoScale},
    {"bfloat16.hysteresis", kNoScale},
    {"bfloat16.min_loss_scale", kNoScale},
    {"bfloat16.auto_cast", "inputs are cast where the model needs it"},
    {"allgather_size", "a unit is gathered whole, in the order of its uses"},
    {"allreduce_always_fp32", "gradients are summed in fp32 always"},
    {"fp32_allreduce", "gradients are summed in fp32 always"},
    {"optimizer.params.comm_backend_name", kOneBit},
    {"optimizer.params.cuda_aware", kOneBit},
    {"optimizer.params.correct_bias", "bias_correction decides, and is on by default"},
    {"optimizer.params.adam_w", "the type decides: Adam with adam_w_mode, or AdamW"},
    {"optimizer.lr", kMisplaced},
    {"optimizer.betas", kMisplaced},
    {"optimizer.eps", kMisplaced},
    {"optimizer.weight_decay", kMisplaced},
    {"zero_optimization.max_grad_norm", "gradient_clipping decides, at the top level"},
    {"zero_optimization.gather_16bit_weights", "a saved model is always whole"},
    {"zero_optimization.grad_hooks", "gradients are taken as they come"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", "momentum stays in host memory"},
    {"zero_optimization.loco_param", "what ranks exchange is exact"},
    {"checkpoint.writer.show_statistics", "checkpoints have a format of their own"},
    {"checkpoint.writer.io_multiplier", "checkpoints have a format of their own"},
    {"checkpointing.*", "DeepSpeed does not read it, either; --save_every and --keep decide"},
    {"tensor_parallel.dtype", kUnsplit},
    {"tensor_parallel.injection_policy_tuple", kUnsplit},
    {"tensor_parallel.keep_module_on_host", kUnsplit},
    {"tensor_parallel.kernel_inject", kUnsplit},
    {"tensor_parallel.replace_with_kernel_inject", kUnsplit},
    {"tensor_parallel.partition_config", kUnsplit},
    {"tensor_parallel.preset_model", kUnsplit},
    {"tensor_parallel.tensor_parallel", kUnsplit},
    {"tensor_parallel.tp", kUnsplit},
    {"tensor_parallel.tp_overlap_comm", kUnsplit},
    {"nebula.*", "checkpoints have a format of their own"},
    {"datastates_ckpt.*", "checkpoints have a format of their own"},
    // Keys that tune or observe.
    {"autotuning.*", "sizes are as written, else chosen from the machine; nothing is searched"},
    {"comms_config.*", "trace records every operation"},
    {"grad_hooks", "gradients are taken as they come"},
    {"timers.enabled", "every step's breakdown is in metrics.jsonl"},
    {"backend", kLinks},
    {"dist_backend", kLinks},
    {"distributed_backend", kLinks},
    {"communication_backend", kLinks},
    {"comm_backend_name", kLinks},
    {"local_rank", kLinks},
    {"world_size", kLinks},
    {"num_gpus", kLinks},
    {"num_nodes", kLinks},
    // Keys of the Trainer, accelerate and scripts: DeepSpeed ignores unknown ones at the top level.
    {"micro_batch_size_per_gpu",
     "DeepSpeed does not read it, either; train_micro_batch_size_per_gpu decides"},
    {"micro_batch_size",
     "DeepSpeed does not read it, either; train_micro_batch_size_per_gpu decides"},
    {"per_device_train_batch_size",
     "DeepSpeed does not read it, either; train_micro_batch_size_per_gpu decides"},
    {"per_device_eval_batch_size", kFlags},
    {"eval_batch_size", kFlags},
    {"max_grad_norm", "DeepSpeed does not read it, either; gradient_clipping decides"},
    {"clip_grad_norm", "DeepSpeed does not read it, either; gradient_clipping decides"},
    {"grad_clip", "DeepSpeed does not read it, either; gradient_clipping decides"},
    {"lr", kMisplaced},
    {"learning_rate", kMisplaced},
    {"weight_decay", kMisplaced},
    {"betas", kMisplaced},
    {"warmup_steps", kFlags},
    {"warmup_ratio", kFlags},
    {"lr_scheduler_type", kFlags},
    {"num_train_epochs", kFlags},
    {"epochs", kFlags},
    {"num_epochs", kFlags},
    {"max_steps", kFlags},
    {"seed", kFlags},
    {"output_dir", kFlags},
    {"logging_steps", kFlags},
    {"save_steps", kFlags},
    {"log", kFlags},
    {"logger", kFlags},
    {"data", kFlags},
    {"steps", kFlags},
    {"checkpoint_dir", kFlags},
    {"checkpoint_path", kFlags},
    {"checkpoint_interval", kFlags},
    {"test_batch_size", kFlags},
    {"valid_batch_size", kFlags},
    {"validation_batch_size", kFlags},
    {"logging", kFlags},
    {"logging_dir", kFlags},
    {"eval_steps", kFlags},
    {"save_total_limit", kFlags},
    {"save_interval", kFlags},
    {"gradient_checkpointing", "--activation_checkpointing decides"},
    {"gradient_checkpointing_kwargs", "--activation_checkpointing decides"},
    {"max_seq_length", kFlags},
    {"max_length", kFlags},
    {"dataloader_num_workers", "data is read ahead by the engine"},
    {"dataloader_pin_memory", "data is read ahead by the engine"},
    {"num_workers", "data is read ahead by the engine"},
    {"model_name_or_path", kFlags},
    {"model_name", kFlags},
    {"report_to", kFlags},
    {"run_name", kFlags},
    {"use_cache", kFlags},
    {"description", kNote},
    {"name", kNote},
    {"version", kNote},
    {"comment", kNote},
    {"comments", kNote},
    {"zero3_init_flag", "weights are read shard by shard always"},
    {"zero3_save_16bit_model", "a saved model is always whole"},
    {"deepspeed_multinode_launcher", kLinks},
    {"distributed_type", kLinks},
    {"num_machines", kLinks},
    {"num_processes", kLinks},
    {"mixed_precision", "fp16 and bf16 decide what computes"},
}};

}  // namespace

const LeftKey* left_key(std::string_view path) {
  static constexpr LeftKey kWrittenNote = {"_*", kNote};
  const std::string_view name = path.substr(path.rfind('.') + 1);  // the whole where there is none
  if (name.starts_with('_') || name.starts_with("//") || name.starts_with('#') ||
      name == "comment") {
    return &kWrittenNote;
  }
  const auto* const found = std::ranges::find_if(kLeft, [path](const LeftKey& key) {
    return key.path == path ||
           (key.path.ends_with(".*") && key.path.substr(0, key.path.size() - 2) == path);
  });
  return found == kLeft.end() ? nullptr : found;
}

}  // namespace tandem
