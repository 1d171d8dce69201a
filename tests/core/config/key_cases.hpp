// tests/core/config/key_cases.hpp — the DeepSpeed schema as cases: each key, its default, a value
// for it, and what becomes of that value.
#pragma once

#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tandem::test {

enum Becomes { kApplied, kLeft, kRefused };

struct KeyCase {
  const char* path;
  const char* fallback;  // DeepSpeed's default as JSON; "-": needed, or none
  const char* value;
  Becomes becomes = kApplied;
  const char* part = "";  // text in the reason, or in the resolved value
};

/// A document as (path, JSON) pairs: paths may share blocks.
using Members = std::vector<std::pair<std::string, std::string>>;

inline const KeyCase kTop[] = {
    {"train_batch_size", "0", "8"},
    {"train_micro_batch_size_per_gpu", "0", "8"},
    {"gradient_clipping", "1", "0.5"},
    {"prescale_gradients", "false", "true", kLeft, "divided once"},
    {"gradient_predivide_factor", "1", "2.0", kLeft, "divided once"},
    {"gradient_allreduce_op", "\"mean\"", "\"sum\"", kRefused, "averaged"},
    {"communication_data_type", "null", "\"fp32\"", kLeft, "compute type"},
    {"seq_parallel_communication_data_type", "\"fp32\"", "\"bf16\"", kLeft, "sequence"},
    {"sparse_gradients", "false", "true", kRefused, "dense"},
    {"managed_gradient_accumulation", "true", "false", kRefused, "gradient_accumulation_steps"},
    {"steps_per_print", "null", "10", kLeft, "log_interval"},
    {"wall_clock_breakdown", "false", "true"},
    {"memory_breakdown", "false", "true", kLeft, "metrics.jsonl"},
    {"dump_state", "false", "true", kLeft, "resolved_config.json"},
    {"log_level", "null", "\"info\"", kLeft, "log_level"},
    {"dataloader_drop_last", "false", "true"},
    {"decay_norms", "true", "false"},
    {"zero_allow_untested_optimizer", "false", "true", kLeft, "tested"},
    {"zero_force_ds_cpu_optimizer", "true", "false", kLeft, "one CPU optimizer"},
    {"disable_allgather", "false", "true", kLeft, "without effect"},
    {"use_data_before_expert_parallelism", "false", "true", kLeft, "expert"},
    {"graph_harvesting", "false", "true", kLeft, "graphs"},
    {"vocabulary_size", "null", "50257", kLeft, "config.json"},
    {"sequence_parallel_size", "1", "1"},
    {"data_parallel_size", "null", "1", kLeft, "data-parallel"},
    {"torch_autocast", "null", R"({"enabled": true})", kRefused, "one type"},
    {"data_types.grad_accum_dtype", "null", "\"fp32\"", kLeft, "fp32"},
    {"data_types.param_dtype", "null", "\"fp32\"", kLeft, "fp32"},
    {"data_types.buffer_dtype", "null", "\"bf16\"", kLeft, "fp32"},
};

inline const KeyCase kAccumulation[] = {{"gradient_accumulation_steps", "0", "4"}};

inline const KeyCase kFp16[] = {
    {"fp16.enabled", "false", "true"},
    {"fp16.auto_cast", "false", "true", kLeft, "cast"},
    {"fp16.loss_scale", "0", "128"},
    {"fp16.initial_scale_power", "16", "15"},
    {"fp16.loss_scale_window", "1000", "500"},
    {"fp16.hysteresis", "2", "3"},
    {"fp16.consecutive_hysteresis", "false", "true"},
    {"fp16.min_loss_scale", "1", "2"},
    {"fp16.fp16_master_weights_and_grads", "false", "true", kRefused, "fp32"},
    {"fp16.type", "null", "\"float16\"", kLeft, "old name"},
};

inline const KeyCase kBf16[] = {
    {"bf16.enabled", "false", "true"},
    {"bf16.immediate_grad_update", "false", "true", kLeft, "fp32"},
    {"bf16.check_grad_overflow", "true", "false", kLeft, "always"},
    {"bf16.bf16_master_weights_and_grads", "false", "true", kRefused, "fp32"},
    {"bf16.bf16_optimizer_states", "false", "true", kRefused, "fp32"},
};

#define ZERO "zero_optimization."
inline const KeyCase kZero[] = {
    {ZERO "stage", "0", "3"},
    {ZERO "contiguous_gradients", "true", "false", kLeft, "always"},
    {ZERO "reduce_scatter", "true", "false", kLeft, "the same"},
    {ZERO "reduce_bucket_size", "500000000", "4e8", kLeft, "units"},
    {ZERO "allgather_bucket_size", "500000000", "4e8", kLeft, "units"},
    {ZERO "use_multi_rank_bucket_allreduce", "true", "false", kLeft, "reduce-scatters"},
    {ZERO "allgather_partitions", "true", "false", kLeft, "without effect"},
    {ZERO "overlap_comm", "null", "true", kLeft, "overlap"},
    {ZERO "load_from_fp32_weights", "true", "false", kLeft, "checkpoints"},
    {ZERO "elastic_checkpoint", "false", "true", kLeft, "checkpoints"},
    {ZERO "round_robin_gradients", "false", "true", kLeft, "units"},
    {ZERO "ignore_unused_parameters", "true", "false", kLeft, "zero"},
    {ZERO "legacy_stage1", "false", "true", kRefused, "dropped"},
    {ZERO "sub_group_size", "1000000000", "4e8", kLeft, "units"},
    {ZERO "stage3_prefetch_bucket_size", "50000000", "0", kLeft, "gather_slots"},
    {ZERO "stage3_param_persistence_threshold", "100000", "0"},
    {ZERO "stage3_model_persistence_threshold", "9223372036854775807", "1e9", kLeft,
     "unit by unit"},
    {ZERO "stage3_max_live_parameters", "1000000000", "1e8", kLeft, "gather_slots"},
    {ZERO "stage3_max_reuse_distance", "1000000000", "1e8", kLeft, "next use"},
    {ZERO "stage3_gather_16bit_weights_on_model_save", "false", "true", kLeft, "whole"},
    {ZERO "stage3_module_granularity_threshold", "0", "100", kLeft, "units"},
    {ZERO "stage3_use_all_reduce_for_fetch_params", "false", "true", kLeft, "all-gathers"},
    {ZERO "stage3_allgather_sequential", "false", "true", kLeft, "order"},
    {ZERO "memory_efficient_linear", "true", "false", kLeft, "backward"},
    {ZERO "zero_hpz_partition_size", "1", "2", kLeft, "same values"},
    {ZERO "zero_quantized_weights", "false", "true", kRefused, "ZeRO++"},
    {ZERO "zero_quantized_nontrainable_weights", "false", "true", kRefused, "ZeRO++"},
    {ZERO "zero_quantized_gradients", "false", "true", kRefused, "ZeRO++"},
    {ZERO "zeropp_loco_param", "null", R"({"err_beta": 0.8})", kRefused, "ZeRO++"},
    {ZERO "mics_shard_size", "-1", "2", kLeft, "same values"},
    {ZERO "mics_hierarchical_params_gather", "false", "true", kLeft, "same values"},
    {ZERO "override_module_apply", "true", "false", kLeft, "Python"},
    {ZERO "pipeline_loading_checkpoint", "false", "true", kLeft, "checkpoints"},
    {ZERO "log_trace_cache_warnings", "false", "true", kLeft, "plan"},
    {ZERO "enable_sanity_checks", "false", "true", kLeft, "always"},
    {ZERO "leaf_module.classes", "-", R"(["a.B"])", kLeft, "units"},
    {ZERO "leaf_module.names", "[]", R"(["mlp"])", kLeft, "units"},
    {ZERO "leaf_module.name_suffixes", "[]", R"(["mlp"])", kLeft, "units"},
    {ZERO "offload_optimizer.device", "\"none\"", "\"cpu\""},
    {ZERO "offload_optimizer.nvme_path", "-", "\"/nvme\"", kLeft, "NVMe"},
    {ZERO "offload_optimizer.pin_memory", "true", "false", kLeft, "pinned"},
    {ZERO "offload_optimizer.buffer_count", "4", "5", kLeft, "NVMe"},
    {ZERO "offload_optimizer.fast_init", "false", "true", kLeft, "NVMe"},
    {ZERO "offload_optimizer.pipeline_read", "false", "true", kLeft, "NVMe"},
    {ZERO "offload_optimizer.pipeline_write", "false", "true", kLeft, "NVMe"},
    {ZERO "offload_optimizer.ratio", "1", "0.9"},
    {ZERO "offload_optimizer.super_offload", "false", "true"},
    {ZERO "offload_optimizer.cpuadam_cores_perc", "0.8", "0.5"},
    {ZERO "offload_param.device", "\"none\"", "\"cpu\"", kLeft, "host memory"},
    {ZERO "offload_param.nvme_path", "-", "\"/nvme\"", kLeft, "NVMe"},
    {ZERO "offload_param.buffer_count", "5", "6", kLeft, "gather slots"},
    {ZERO "offload_param.buffer_size", "100000000", "1e9", kLeft, "gather slots"},
    {ZERO "offload_param.max_in_cpu", "1000000000", "1e8", kLeft, "NVMe"},
    {ZERO "offload_param.pin_memory", "true", "false", kLeft, "pinned"},
    {ZERO "zenflow", "null", R"({"topk_ratio": 0.1})", kRefused, "super_offload"},
};

inline const KeyCase kBlocks[] = {
    {"checkpoint.tag_validation", "\"Warn\"", "\"Fail\"", kLeft, "checkpoints"},
    {"checkpoint.load_universal", "false", "true", kLeft, "checkpoints"},
    {"checkpoint.use_node_local_storage", "false", "true", kLeft, "checkpoints"},
    {"checkpoint.checkpoint_serialization", "true", "false", kLeft, "checkpoints"},
    {"checkpoint.parallel_write.pipeline_stage", "false", "true", kLeft, "checkpoints"},
    {"checkpoint.writer.type", "\"FAST\"", "\"PYTHON\"", kLeft, "checkpoints"},
    {"checkpoint.writer.io_buffer_size", "67108864", "1048576", kLeft, "checkpoints"},
    {"checkpoint.writer.io_buffer_double", "-", "true", kLeft, "checkpoints"},
    {"checkpoint.writer.decoupled", "false", "true", kLeft, "checkpoints"},
    {"checkpoint.writer.data_parallel", "-", "\"replica\"", kLeft, "checkpoints"},
    {"activation_checkpointing.cpu_checkpointing", "false", "true"},
    {"activation_checkpointing.partition_activations", "false", "true", kLeft, "activation"},
    {"activation_checkpointing.contiguous_memory_optimization", "false", "true", kLeft,
     "activation"},
    {"activation_checkpointing.synchronize_checkpoint_boundary", "false", "true", kLeft,
     "activation"},
    {"activation_checkpointing.profile", "false", "true", kLeft, "activation"},
    {"activation_checkpointing.number_checkpoints", "null", "4", kLeft, "activation"},
    {"aio.block_size", "1048576", "131072", kLeft, "NVMe"},
    {"aio.queue_depth", "8", "32", kLeft, "NVMe"},
    {"aio.intra_op_parallelism", "1", "2", kLeft, "NVMe"},
    {"aio.thread_count", "-", "2", kLeft, "NVMe"},
    {"aio.single_submit", "false", "true", kLeft, "NVMe"},
    {"aio.overlap_events", "true", "false", kLeft, "NVMe"},
    {"aio.use_gds", "false", "true", kLeft, "NVMe"},
    {"flops_profiler.enabled", "false", "true"},
    {"flops_profiler.profile_step", "1", "5"},
    {"flops_profiler.module_depth", "-1", "2"},
    {"flops_profiler.top_modules", "1", "3"},
    {"flops_profiler.detailed", "true", "false"},
    {"flops_profiler.output_file", "\"\"", "\"f\""},
    {"flops_profiler.recompute_fwd_factor", "0", "1.0"},
    {"tensorboard.enabled", "false", "true"},
    {"tensorboard.output_path", "\"\"", "\"logs\""},
    {"tensorboard.job_name", "\"DeepSpeedJobName\"", "\"j\""},
    {"csv_monitor.enabled", "false", "true"},
    {"csv_monitor.output_path", "\"\"", "\"logs\""},
    {"csv_monitor.job_name", "\"DeepSpeedJobName\"", "\"j\""},
    {"wandb.enabled", "false", "true"},
    {"wandb.group", "\"\"", "\"g\""},
    {"wandb.team", "\"\"", "\"t\""},
    {"wandb.project", "\"deepspeed\"", "\"p\""},
    {"comet.enabled", "false", "true", kLeft, "metrics.jsonl"},
    {"comet.samples_log_interval", "-", "10", kLeft, "metrics.jsonl"},
    {"comet.project", "-", "\"p\"", kLeft, "metrics.jsonl"},
    {"comet.workspace", "-", "\"w\"", kLeft, "metrics.jsonl"},
    {"comet.api_key", "-", "\"k\"", kLeft, "metrics.jsonl"},
    {"comet.experiment_name", "-", "\"e\"", kLeft, "metrics.jsonl"},
    {"comet.experiment_key", "-", "\"e\"", kLeft, "metrics.jsonl"},
    {"comet.online", "-", "true", kLeft, "metrics.jsonl"},
    {"comet.mode", "-", "\"get\"", kLeft, "metrics.jsonl"},
    {"comms_logger.enabled", "false", "true"},
    {"comms_logger.prof_all", "true", "false"},
    {"comms_logger.prof_ops", "[]", R"(["all_reduce"])", kLeft, "prof_all"},
    {"comms_logger.verbose", "false", "true"},
    {"comms_logger.debug", "false", "true"},
    {"timers.throughput.enabled", "true", "false", kLeft, "measured"},
    {"timers.throughput.synchronized", "true", "false", kLeft, "measured"},
    {"compile", "-", R"({"enabled": true})", kLeft, "compiled"},
    {"hybrid_engine", "-", R"({"enabled": true})", kRefused, "generation"},
    {"sparse_attention", "-", R"({"mode": "fixed"})", kRefused, "whole"},
    {"expert_parallel", "-", R"({"enabled": true})", kRefused, "shards"},
    {"quantize_training", "-", R"({"enabled": true})", kRefused, "quantised"},
    {"weight_quantization", "-", R"({"enabled": true})", kRefused, "quantised"},
    {"fp8", "-", R"({"enabled": true})", kRefused, "bf16"},
    {"curriculum_learning", "-", R"({"enabled": true})", kRefused, "sampler"},
    {"data_efficiency", "-", R"({"enabled": true})", kRefused, "sampler"},
    {"compression_training", "-", R"({"weight_quantization": {}})", kRefused, "quantised"},
    {"eigenvalue", "-", R"({"enabled": true})", kRefused, "quantised"},
    {"progressive_layer_drop", "-", R"({"enabled": true})", kRefused, "every layer"},
    {"pipeline", "-", R"({"stages": 2})", kRefused, "pipeline stages"},
    {"tensor_parallel.autotp_size", "0", "2", kRefused, "data-parallel"},
    {"optimizer.legacy_fusion", "false", "true", kLeft, "one fused kernel"},
};

#define ELASTIC "elasticity."
inline const KeyCase kElastic[] = {
    {ELASTIC "enabled", "false", "true"},
    {ELASTIC "max_train_batch_size", "2000", "64"},
    {ELASTIC "micro_batch_sizes", "[2, 4, 6]", "[1, 2]"},
    {ELASTIC "min_gpus", "1", "1"},
    {ELASTIC "max_gpus", "10000", "8"},
    {ELASTIC "min_time", "0", "20", kLeft, "scheduler"},
    {ELASTIC "version", "0.2", "0.1"},
    {ELASTIC "prefer_larger_batch", "true", "false"},
    {ELASTIC "ignore_non_elastic_batch_info", "false", "true"},
    {ELASTIC "num_gpus_per_node", "1", "2"},
    {ELASTIC "model_parallel_size", "1", "2", kRefused, "data-parallel"},
};
#undef ELASTIC

#define OPT "optimizer.params."
inline const KeyCase kAdam[] = {
    {OPT "lr", "0.001", "0.1"},
    {OPT "betas", "[0.9, 0.999]", "[0.8, 0.9]"},
    {OPT "eps", "1e-8", "1e-6"},
    {OPT "weight_decay", "0", "0.1"},
    {OPT "bias_correction", "true", "false"},
    {OPT "adam_w_mode", "true", "false"},
    {OPT "torch_adam", "false", "true", kLeft, "one implementation"},
    {OPT "amsgrad", "false", "true", kRefused, "AMSGrad"},
    {OPT "fp32_optimizer_states", "true", "false", kRefused, "fp32"},
    {OPT "max_grad_norm", "null", "1.0", kLeft, "gradient_clipping"},
};
inline const KeyCase kSgd[] = {
    {OPT "lr", "0.001", "0.1"},
    {OPT "momentum", "0", "0.9"},
    {OPT "weight_decay", "0", "0.1"},
    {OPT "nesterov", "false", "false"},
    {OPT "dampening", "0", "0.1", kLeft, "momentum is 0"},
    {OPT "maximize", "false", "true", kRefused, "minimised"},
    {OPT "differentiable", "false", "true", kRefused, "differentiated"},
    {OPT "foreach", "null", "true", kLeft, "one fused kernel"},
    {OPT "fused", "null", "true", kLeft, "one fused kernel"},
    {OPT "max_grad_norm", "null", "1.0", kLeft, "gradient_clipping"},
};
inline const KeyCase kLion[] = {
    {OPT "lr", "0.001", "0.1"},
    {OPT "betas", "[0.9, 0.99]", "[0.8, 0.9]"},
    {OPT "weight_decay", "0", "0.1"},
    {OPT "fp32_optimizer_states", "true", "false", kRefused, "fp32"},
    {OPT "max_grad_norm", "null", "1.0", kLeft, "gradient_clipping"},
};
inline const KeyCase kAdagrad[] = {
    {OPT "lr", "0.01", "0.1"},
    {OPT "eps", "1e-10", "1e-6"},
    {OPT "weight_decay", "0", "0.1"},
    {OPT "lr_decay", "0", "0.1", kRefused, "scheduler"},
    {OPT "initial_accumulator_value", "0", "0.1", kRefused, "zero"},
    {OPT "amsgrad", "false", "true", kRefused, "no such form"},
    {OPT "maximize", "false", "true", kRefused, "minimised"},
    {OPT "differentiable", "false", "true", kRefused, "differentiated"},
    {OPT "foreach", "null", "true", kLeft, "one fused kernel"},
    {OPT "fused", "null", "true", kLeft, "one fused kernel"},
    {OPT "fp32_optimizer_states", "true", "false", kRefused, "fp32"},
    {OPT "max_grad_norm", "null", "1.0", kLeft, "gradient_clipping"},
};

inline const KeyCase kLamb[] = {
    {OPT "lr", "0.001", "0.1"},
    {OPT "betas", "[0.9, 0.999]", "[0.8, 0.9]"},
    {OPT "eps", "1e-08", "1e-6"},
    {OPT "weight_decay", "0", "0.1"},
    {OPT "bias_correction", "true", "false"},
    {OPT "eps_inside_sqrt", "false", "true"},
    {OPT "min_coeff", "0.01", "0.1"},
    {OPT "max_coeff", "10", "0.3"},
    {OPT "amsgrad", "false", "true", kRefused, "AMSGrad"},
    {OPT "fp32_optimizer_states", "true", "false", kRefused, "fp32"},
    {OPT "max_grad_norm", "null", "1.0", kLeft, "gradient_clipping"},
};
inline const KeyCase kMuon[] = {
    {OPT "lr", "0.02", "0.1"},
    {OPT "muon_lr", "null", "0.1"},
    {OPT "adam_lr", "null", "0.1"},
    {OPT "momentum", "0.95", "0.9"},
    {OPT "betas", "[0.9, 0.95]", "[0.8, 0.9]"},
    {OPT "eps", "1e-10", "1e-6"},
    {OPT "weight_decay", "0", "0.1"},
    {OPT "ns_method", "\"gram\"", "\"standard\"", kLeft, "same polynomials"},
    {OPT "fp32_optimizer_states", "true", "false", kRefused, "fp32"},
    {OPT "max_grad_norm", "null", "1.0", kLeft, "gradient_clipping"},
};

#define SCH "scheduler.params."
inline const KeyCase kWarmup[] = {
    {SCH "warmup_min_lr", "0", "0.1"},
    {SCH "warmup_max_lr", "null", "0.1"},
    {SCH "warmup_num_steps", "1000", "10"},
    {SCH "warmup_type", "\"log\"", "\"linear\""},
    {SCH "last_batch_iteration", "-1", "3", kRefused, "restores"},
};
inline const KeyCase kWarmupDecay[] = {
    {SCH "warmup_min_lr", "0", "0.1"},
    {SCH "warmup_max_lr", "0.001", "0.1"},
    {SCH "warmup_num_steps", "1000", "10"},
    {SCH "warmup_type", "\"log\"", "\"linear\""},
    {SCH "total_num_steps", "-", "100"},
    {SCH "last_batch_iteration", "-1", "3", kRefused, "restores"},
};
inline const KeyCase kCosine[] = {
    {SCH "warmup_min_ratio", "0", "0.1"},
    {SCH "cos_min_ratio", "0.0001", "0.1"},
    {SCH "warmup_num_steps", "1000", "10"},
    {SCH "warmup_type", "\"log\"", "\"linear\""},
    {SCH "total_num_steps", "-", "100"},
    {SCH "last_batch_iteration", "-1", "3", kRefused, "restores"},
};
inline const KeyCase kOneCycle[] = {
    {SCH "cycle_min_lr", "-", "0.1"},
    {SCH "cycle_max_lr", "-", "0.2"},
    {SCH "decay_lr_rate", "0", "0.1"},
    {SCH "cycle_first_step_size", "2000", "10"},
    {SCH "cycle_second_step_size", "null", "20"},
    {SCH "cycle_first_stair_count", "0", "2"},
    {SCH "cycle_second_stair_count", "null", "3"},
    {SCH "decay_step_size", "0", "10"},
    {SCH "cycle_momentum", "true", "false"},
    {SCH "cycle_min_mom", "0.8", "0.7"},
    {SCH "cycle_max_mom", "0.9", "0.95"},
    {SCH "decay_mom_rate", "0", "0.1"},
    {SCH "last_batch_iteration", "-1", "3", kRefused, "restores"},
};
inline const KeyCase kRangeTest[] = {
    {SCH "lr_range_test_min_lr", "0.001", "0.1"},
    {SCH "lr_range_test_step_size", "2000", "10"},
    {SCH "lr_range_test_step_rate", "1", "2"},
    {SCH "lr_range_test_staircase", "false", "true"},
    {SCH "last_batch_iteration", "-1", "3", kRefused, "restores"},
};

/// Keys that exist only beside others, and those.
struct Group {
  const char* name;
  std::span<const KeyCase> cases;
  Members beside;
};

inline void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }

inline std::vector<Group> groups() {
  const auto with = [](const char* path, const char* json) { return Members{{path, json}}; };
  const Members cosine = {{"scheduler.type", "\"WarmupCosineLR\""}, {SCH "total_num_steps", "99"}};
  const Members decay = {{"scheduler.type", "\"WarmupDecayLR\""}, {SCH "total_num_steps", "99"}};
  const Members cycle = {
      {"scheduler.type", "\"OneCycle\""}, {SCH "cycle_min_lr", "0"}, {SCH "cycle_max_lr", "1"}};
  return {{"top", kTop, {}},
          {"accumulation", kAccumulation, with("train_micro_batch_size_per_gpu", "2")},
          {"fp16", kFp16, with("fp16.enabled", "true")},
          {"bf16", kBf16, {}},
          {"zero", kZero, with(ZERO "stage", "3")},
          {"elastic",
           kElastic,
           {{"elasticity.enabled", "true"},
            {"elasticity.max_train_batch_size", "64"},
            {"elasticity.micro_batch_sizes", "[1]"},
            {"elasticity.ignore_non_elastic_batch_info", "true"}}},
          {"blocks", kBlocks, with("optimizer.type", "\"adam\"")},
          {"adam", kAdam, with("optimizer.type", "\"Adam\"")},
          {"sgd", kSgd, with("optimizer.type", "\"SGD\"")},
          {"lion", kLion, with("optimizer.type", "\"Lion\"")},
          {"adagrad", kAdagrad, with("optimizer.type", "\"Adagrad\"")},
          {"lamb", kLamb, with("optimizer.type", "\"Lamb\"")},
          {"muon", kMuon, with("optimizer.type", "\"Muon\"")},
          {"warmup", kWarmup, with("scheduler.type", "\"WarmupLR\"")},
          {"decay", kWarmupDecay, decay},
          {"cosine", kCosine, cosine},
          {"cycle", kOneCycle, cycle},
          {"range", kRangeTest, with("scheduler.type", "\"LRRangeTest\"")}};
}

#undef ZERO
#undef OPT
#undef SCH

}  // namespace tandem::test
