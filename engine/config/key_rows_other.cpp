// Rows of precision, monitors and the remaining blocks.
#include <fmt/format.h>

#include "engine/config/key_rows.hpp"

namespace tandem::key_rows {
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
  rows.push_back(key("fp16.min_loss_scale", &f.min_loss_scale).above(0));
  rows.push_back(key("fp16.fp16_master_weights_and_grads", &f.master_weights_and_grads)
                     .unused("master weights and gradient sums are fp32"));
  rows.push_back(raw("fp16.type", Kind::kString, "null").unused("an old name without effect"));
  rows.push_back(key("bf16.enabled", &c.bf16.enabled));
  rows.push_back(raw("bf16.immediate_grad_update", Kind::kBool, "false")
                     .unused("gradients are summed in fp32 as they come"));
  rows.push_back(key("bf16.check_grad_overflow", &c.bf16.check_grad_overflow)
                     .unused("gradients are always checked: the check is free with the norm"));
  rows.push_back(raw("bf16.bf16_master_weights_and_grads", Kind::kBool, "false")
                     .refused("master weights and gradient sums are fp32"));
  rows.push_back(
      raw("bf16.bf16_optimizer_states", Kind::kBool, "false").refused("state is kept in fp32"));
  for (const char* name :
       {"data_types.grad_accum_dtype", "data_types.param_dtype", "data_types.buffer_dtype"}) {
    rows.push_back(
        raw(name, Kind::kString, "null")
            .one_of({"fp32", "fp16", "bf16"})
            .unused("gradients are summed in fp32; fp16/bf16 decide the type of the weights"));
  }
  rows.push_back(
      block("torch_autocast").refused("weights and activations have one type; use bf16 or fp16"));
  rows.push_back(
      block("amp").refused("apex is not supported, as with ZeRO in DeepSpeed; use bf16 or fp16"));
  return rows;
}

Rows monitor_rows() {
  constexpr std::string_view kTensorBoard = "--tensorboard and --output_dir decide";
  Rows rows;
  rows.push_back(raw("tensorboard.enabled", Kind::kBool, "false").unused(kTensorBoard));
  rows.push_back(raw("tensorboard.output_path", Kind::kString, "\"\"").unused(kTensorBoard));
  rows.push_back(
      raw("tensorboard.job_name", Kind::kString, "\"DeepSpeedJobName\"").unused(kTensorBoard));
  for (const char* name : {"csv_monitor", "wandb", "comet"}) {
    rows.push_back(block(name).unused("metrics.jsonl and TensorBoard events hold every figure"));
  }
  rows.push_back(block("comms_logger").unused("--trace records every operation"));
  rows.push_back(block("flops_profiler").unused("TFLOPS are in metrics.jsonl at every step"));
  rows.push_back(raw("timers.throughput.enabled", Kind::kBool, "true")
                     .unused("throughput is always measured"));
  rows.push_back(raw("timers.throughput.synchronized", Kind::kBool, "true")
                     .unused("throughput is measured without stopping the device"));
  return rows;
}

Rows other_rows() {
  Rows rows;
  rows.push_back(
      raw("checkpoint.tag_validation", Kind::kString, "\"Warn\"")
          .one_of({"Ignore", "Warn", "Fail", "ignore", "warn", "fail", "IGNORE", "WARN", "FAIL"})
          .unused(kOwnCheckpoints));
  for (const char* name :
       {"load_universal", "use_node_local_storage", "checkpoint_serialization"}) {
    rows.push_back(
        raw(fmt::format("checkpoint.{}", name), Kind::kBool, name[0] == 'c' ? "true" : "false")
            .unused(kOwnCheckpoints));
  }
  rows.push_back(raw("checkpoint.parallel_write.pipeline_stage", Kind::kBool, "false")
                     .unused(kOwnCheckpoints));
  rows.push_back(block("checkpoint.writer").unused(kOwnCheckpoints));
  for (const char* name : {"partition_activations", "contiguous_memory_optimization",
                           "cpu_checkpointing", "synchronize_checkpoint_boundary", "profile"}) {
    rows.push_back(raw(fmt::format("activation_checkpointing.{}", name), Kind::kBool, "false")
                       .unused("--activation_checkpointing decides"));
  }
  rows.push_back(raw("activation_checkpointing.number_checkpoints", Kind::kInt, "null")
                     .unused("--activation_checkpointing decides"));
  for (const char* name : {"block_size", "queue_depth", "intra_op_parallelism", "thread_count"}) {
    rows.push_back(raw(fmt::format("aio.{}", name), Kind::kInt, "null").unused(kNoNvme));
  }
  for (const char* name : {"single_submit", "overlap_events", "use_gds"}) {
    rows.push_back(raw(fmt::format("aio.{}", name), Kind::kBool, "null").unused(kNoNvme));
  }
  rows.push_back(block("compile").unused("the schedule is compiled code already"));
  for (const char* name : {"hybrid_engine", "elasticity", "curriculum_learning", "data_efficiency",
                           "compression_training", "eigenvalue", "progressive_layer_drop",
                           "pipeline", "tensor_parallel", "autotuning"}) {
    rows.push_back(block(name).refused(kNotYet));
  }
  return rows;
}

}  // namespace tandem::key_rows
