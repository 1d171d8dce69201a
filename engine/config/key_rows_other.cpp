// Rows of precision, monitors and the remaining blocks.
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>

#include "engine/config/key_rows.hpp"

namespace tandem::key_rows {
constexpr std::string_view kOwnOrder =
    "samples come in the sampler's order, and every layer sees all their tokens; leave it out";

Rows precision_rows(Config& c) {
  Fp16Config& f = c.fp16;
  Rows rows;
  rows.push_back(key("fp16.enabled", &f.enabled));
  rows.push_back(
      key("fp16.auto_cast", &f.auto_cast).unused("inputs are cast where the model needs it"));
  rows.push_back(key("fp16.loss_scale", &f.loss_scale).at_least(0));
  rows.push_back(key("fp16.initial_scale_power", &f.initial_scale_power).range(0, 127));
  rows.push_back(key("fp16.loss_scale_window", &f.loss_scale_window).range(1, kCountMax));
  rows.push_back(key("fp16.hysteresis", &f.hysteresis).range(1, kCountMax));
  rows.push_back(key("fp16.consecutive_hysteresis", &f.consecutive_hysteresis));
  rows.push_back(key("fp16.min_loss_scale", &f.min_loss_scale).at_least(0));
  rows.push_back(raw("fp16.fp16_master_weights_and_grads", Kind::kBool, "false")
                     .refused("master weights and gradient sums are fp32"));
  rows.push_back(raw("fp16.type", Kind::kString, "null").unused("an old name without effect"));
  rows.push_back(key("bf16.enabled", &c.bf16.enabled));
  rows.push_back(raw("bf16.immediate_grad_update", Kind::kBool, "false")
                     .unused("gradients are summed in fp32 as they come"));
  rows.push_back(key("bf16.check_grad_overflow", &c.bf16.check_grad_overflow)
                     .unused("gradients are always checked: the check is free with the norm"));
  rows.push_back(raw("bf16.bf16_master_weights_and_grads", Kind::kBool, "false")
                     .refused("master weights and gradient sums are fp32"));
  rows.push_back(
      raw("bf16.bf16_optimizer_states", Kind::kBool, "false")
          .refused("state is kept in fp32; --optimizer_state bf16 keeps it in as few bytes"));
  for (const char* name :
       {"data_types.grad_accum_dtype", "data_types.param_dtype", "data_types.buffer_dtype"}) {
    rows.push_back(
        raw(name, Kind::kString, "null")
            .one_of({"fp32", "fp16", "bf16"})
            .unused("gradients are summed in fp32; fp16/bf16 decide the type of the weights"));
  }
  rows.push_back(
      block("torch_autocast").refused("weights and activations have one type; use bf16 or fp16"));
  return rows;
}

namespace {

struct RawRow {
  std::string_view name;
  Kind kind;
  std::string_view default_json;
};

/// The keys of a block that we leave aside for one reason.
void append_unused(Rows& rows, std::string_view block, std::string_view reason,
                   std::initializer_list<RawRow> keys) {
  for (const RawRow& k : keys) {
    rows.push_back(raw(fmt::format("{}.{}", block, k.name), k.kind, k.default_json).unused(reason));
  }
}

}  // namespace

Rows monitor_rows(Config& c) {
  constexpr std::string_view kFigures = "metrics.jsonl and TensorBoard events hold every figure";
  MonitorConfig& m = c.monitors;
  Rows rows;
  rows.push_back(key("tensorboard.enabled", &m.tensorboard.enabled));
  rows.push_back(key("tensorboard.output_path", &m.tensorboard.output_path));
  rows.push_back(key("tensorboard.job_name", &m.tensorboard.job_name));
  rows.push_back(key("csv_monitor.enabled", &m.csv.enabled));
  rows.push_back(key("csv_monitor.output_path", &m.csv.output_path));
  rows.push_back(key("csv_monitor.job_name", &m.csv.job_name));
  rows.push_back(key("wandb.enabled", &m.wandb.enabled));
  rows.push_back(key("wandb.group", &m.wandb.group));
  rows.push_back(key("wandb.team", &m.wandb.team));
  rows.push_back(key("wandb.project", &m.wandb.project));
  append_unused(rows, "comet", kFigures,
                {{"enabled", Kind::kBool, "false"},
                 {"samples_log_interval", Kind::kInt, "100"},
                 {"project", Kind::kString, "null"},
                 {"workspace", Kind::kString, "null"},
                 {"api_key", Kind::kString, "null"},
                 {"experiment_name", Kind::kString, "null"},
                 {"experiment_key", Kind::kString, "null"},
                 {"online", Kind::kBool, "null"},
                 {"mode", Kind::kString, "null"}});
  CommsLoggerConfig& comms = c.comms_logger;
  rows.push_back(key("comms_logger.enabled", &comms.enabled));
  rows.push_back(key("comms_logger.prof_all", &comms.prof_all));
  rows.push_back(key("comms_logger.prof_ops", &comms.prof_ops));
  rows.push_back(key("comms_logger.verbose", &comms.verbose));
  rows.push_back(key("comms_logger.debug", &comms.debug));
  FlopsProfilerConfig& flops = c.flops_profiler;
  rows.push_back(key("flops_profiler.enabled", &flops.enabled));
  rows.push_back(key("flops_profiler.profile_step", &flops.profile_step).range(0, kCountMax));
  rows.push_back(key("flops_profiler.module_depth", &flops.module_depth).range(-1, kCountMax));
  rows.push_back(key("flops_profiler.top_modules", &flops.top_modules).range(0, kCountMax));
  rows.push_back(key("flops_profiler.detailed", &flops.detailed));
  rows.push_back(key("flops_profiler.output_file", &flops.output_file));
  rows.push_back(
      key("flops_profiler.recompute_fwd_factor", &flops.recompute_fwd_factor).range(0, kRateMax));
  rows.push_back(raw("timers.throughput.enabled", Kind::kBool, "true")
                     .unused("throughput is always measured"));
  rows.push_back(raw("timers.throughput.synchronized", Kind::kBool, "true")
                     .unused("throughput is measured without stopping the device"));
  return rows;
}

Rows checkpoint_rows() {
  Rows rows;
  rows.push_back(
      raw("checkpoint.tag_validation", Kind::kString, "\"Warn\"")
          .one_of({"Ignore", "Warn", "Fail", "ignore", "warn", "fail", "IGNORE", "WARN", "FAIL"})
          .unused(kOwnCheckpoints));
  append_unused(rows, "checkpoint", kOwnCheckpoints,
                {{"load_universal", Kind::kBool, "false"},
                 {"use_node_local_storage", Kind::kBool, "false"},
                 {"checkpoint_serialization", Kind::kBool, "true"},
                 {"parallel_write.pipeline_stage", Kind::kBool, "false"},
                 {"writer.type", Kind::kString, "\"FAST\""},
                 {"writer.io_buffer_size", Kind::kInt, "67108864"},
                 {"writer.io_buffer_double", Kind::kBool, "null"},
                 {"writer.decoupled", Kind::kBool, "false"},
                 {"writer.data_parallel", Kind::kString, "null"}});
  return rows;
}

namespace {

/// apply_elasticity() reads them.
Rows elasticity_rows() {
  Rows rows;
  const auto add = [](std::string_view name, Kind kind, std::string_view default_json) {
    return raw(fmt::format("elasticity.{}", name), kind, default_json);
  };
  rows.push_back(add("enabled", Kind::kBool, "false"));
  rows.push_back(add("max_train_batch_size", Kind::kInt, "2000").range(1, kCountMax));
  rows.push_back(add("micro_batch_sizes", Kind::kList, "[2,4,6]"));
  rows.push_back(add("min_gpus", Kind::kInt, "1").range(1, kCountMax));
  rows.push_back(add("max_gpus", Kind::kInt, "10000").range(1, kCountMax));
  rows.push_back(add("min_time", Kind::kInt, "0")
                     .at_least(0)
                     .unused("it is for a scheduler of hosts, and none is here"));
  rows.push_back(add("version", Kind::kNumber, "0.2"));
  rows.push_back(add("prefer_larger_batch", Kind::kBool, "true"));
  rows.push_back(add("ignore_non_elastic_batch_info", Kind::kBool, "false"));
  rows.push_back(add("num_gpus_per_node", Kind::kInt, "1").range(1, kCountMax));
  rows.push_back(add("model_parallel_size", Kind::kInt, "1")
                     .refused("ranks are data-parallel: no layer is split"));
  return rows;
}

}  // namespace

Rows other_rows(Config& c) {
  Rows rows = elasticity_rows();
  rows.push_back(key("activation_checkpointing.cpu_checkpointing", &c.cpu_checkpointing));
  for (const char* name : {"partition_activations", "contiguous_memory_optimization",
                           "synchronize_checkpoint_boundary", "profile"}) {
    rows.push_back(raw(fmt::format("activation_checkpointing.{}", name), Kind::kBool, "false")
                       .unused("EngineOptions decide (activation_checkpointing)"));
  }
  rows.push_back(raw("activation_checkpointing.number_checkpoints", Kind::kInt, "null")
                     .unused("EngineOptions decide (activation_checkpointing)"));
  rows.push_back(key("aio.block_size", &c.aio.block_size).range(4096, 1 << 30));
  rows.push_back(key("aio.queue_depth", &c.aio.queue_depth).range(1, 4096));
  rows.push_back(key("aio.intra_op_parallelism", &c.aio.intra_op_parallelism).range(1, 256));
  append_unused(rows, "aio",
                "NVMe is read and written by io_uring, or by intra_op_parallelism threads",
                {{"thread_count", Kind::kInt, "null"},
                 {"single_submit", Kind::kBool, "false"},
                 {"overlap_events", Kind::kBool, "true"},
                 {"use_gds", Kind::kBool, "false"}});
  rows.push_back(block("compile").unused("the schedule is compiled code already"));
  const auto refuse = [&rows](const char* name, std::string_view reason) {
    rows.push_back(block(name).refused(reason));
  };
  refuse("sparse_attention", "attention is whole; leave it out");
  refuse("expert_parallel", "experts lie in shards, as all weights do");
  refuse("quantize_training", "weights are neither pruned nor quantised");
  refuse("weight_quantization", "weights are neither pruned nor quantised");
  refuse("fp8", "weights and activations are fp32, bf16 or fp16");
  refuse("hybrid_engine", "training and generation do not take turns within a run");
  refuse("curriculum_learning", kOwnOrder);
  refuse("data_efficiency", kOwnOrder);
  refuse("compression_training", "weights are neither pruned nor quantised; leave it out");
  refuse("eigenvalue", "only DeepSpeed's quantised training uses it");
  refuse("progressive_layer_drop", "every layer runs in every step; leave it out");
  refuse("pipeline",
         "ranks are data-parallel, without pipeline stages; use zero_optimization.stage 3");
  rows.push_back(raw("tensor_parallel.autotp_size", Kind::kInt, "0")
                     .refused("ranks are data-parallel: no layer is split"));
  return rows;
}

}  // namespace tandem::key_rows
