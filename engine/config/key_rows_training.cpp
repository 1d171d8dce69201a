// Rows of the top level: batch, optimizer, scheduler, and the keys beside them.
#include "engine/config/key_rows.hpp"

namespace tandem::key_rows {
namespace {

constexpr std::string_view kOneKernel = "there is one fused kernel";

/// The parameters that the optimizer's traits name.
void append_traits(Rows& rows, OptimizerConfig& o) {
  const OptimizerTraits& traits = traits_of(o.kind);
  const std::string p = "optimizer.params.";
  if (traits.has_betas) {
    rows.push_back(key(p + "betas", &o.betas).range(0, 1));
  }
  if (traits.has_eps) {
    rows.push_back(key(p + "eps", &o.eps).at_least(0));
  }
  if (traits.has_momentum) {
    rows.push_back(key(p + "momentum", &o.momentum).at_least(0));
  }
}

void append_adam(Rows& rows, OptimizerConfig& o) {
  const std::string p = "optimizer.params.";
  rows.push_back(key(p + "bias_correction", &o.bias_correction));
  rows.push_back(key(p + "adam_w_mode", &o.adam_w_mode));
  rows.push_back(
      raw(p + "torch_adam", Kind::kBool, "false").unused("one implementation serves all"));
  rows.push_back(raw(p + "amsgrad", Kind::kBool, "false")
                     .refused("AMSGrad is not supported, as in DeepSpeed"));
}

/// The arguments of torch.optim's classes beside their formula.
void append_torch(Rows& rows) {
  const std::string p = "optimizer.params.";
  rows.push_back(raw(p + "maximize", Kind::kBool, "false").refused("the loss is minimised"));
  rows.push_back(raw(p + "differentiable", Kind::kBool, "false")
                     .refused("nothing is differentiated through an update"));
  for (const char* name : {"foreach", "fused"}) {
    rows.push_back(raw(p + name, Kind::kBool, "null").unused(kOneKernel));
  }
}

void append_sgd(Rows& rows, OptimizerConfig& o) {
  const std::string p = "optimizer.params.";
  rows.push_back(key(p + "dampening", &o.dampening));
  rows.push_back(key(p + "nesterov", &o.nesterov));
  append_torch(rows);
}

void append_adagrad(Rows& rows) {
  const std::string p = "optimizer.params.";
  rows.push_back(raw(p + "lr_decay", Kind::kNumber, "0")
                     .refused("DeepSpeed's Adagrad has none; write a scheduler instead"));
  rows.push_back(raw(p + "initial_accumulator_value", Kind::kNumber, "0")
                     .refused("the sum of squares begins at zero, as in DeepSpeed's Adagrad"));
  rows.push_back(raw(p + "amsgrad", Kind::kBool, "false").refused("Adagrad has no such form"));
  append_torch(rows);
}

void append_lamb(Rows& rows, OptimizerConfig& o) {
  const std::string p = "optimizer.params.";
  rows.push_back(key(p + "bias_correction", &o.bias_correction));
  rows.push_back(key(p + "eps_inside_sqrt", &o.eps_inside_sqrt));
  rows.push_back(key(p + "min_coeff", &o.min_coeff).range(0, kRateMax));
  rows.push_back(key(p + "max_coeff", &o.max_coeff).range(0, kRateMax));
  rows.push_back(raw(p + "amsgrad", Kind::kBool, "false")
                     .refused("AMSGrad is not supported, as in DeepSpeed"));
}

void append_muon(Rows& rows, OptimizerConfig& o) {
  const std::string p = "optimizer.params.";
  rows.push_back(key(p + "muon_lr", &o.muon_lr).range(0, kRateMax));
  rows.push_back(key(p + "adam_lr", &o.adam_lr).range(0, kRateMax));
  rows.push_back(
      key(p + "ns_method", &o.ns_method)
          .one_of({"gram", "standard"})
          .unused("both iterate the same polynomials, and one of them is here, in fp32"));
}

void append_warmup(Rows& rows, ScheduleConfig& s) {
  const std::string p = "scheduler.params.";
  if (s.type == ScheduleType::kWarmupCosine) {
    rows.push_back(key(p + "warmup_min_ratio", &s.warmup_min_ratio).range(0, 1));
    rows.push_back(key(p + "cos_min_ratio", &s.cos_min_ratio).range(0, 1));
  } else {
    rows.push_back(key(p + "warmup_min_lr", &s.warmup_min_lr).at_least(0));
    rows.push_back(key(p + "warmup_max_lr", &s.warmup_max_lr).at_least(0));
  }
  rows.push_back(key(p + "warmup_num_steps", &s.warmup_num_steps).range(1, kCountMax));
  rows.push_back(key(p + "warmup_type", &s.warmup_type));
  if (s.type != ScheduleType::kWarmup) {
    rows.push_back(key(p + "total_num_steps", &s.total_num_steps).range(1, kCountMax).needed());
  }
}

void append_one_cycle(Rows& rows, ScheduleConfig& s) {
  constexpr double kStairs = 1e6;
  const std::string p = "scheduler.params.";
  rows.push_back(key(p + "cycle_min_lr", &s.cycle_min_lr).at_least(0).needed());
  rows.push_back(key(p + "cycle_max_lr", &s.cycle_max_lr).at_least(0).needed());
  rows.push_back(key(p + "decay_lr_rate", &s.decay_lr_rate).at_least(0));
  rows.push_back(key(p + "cycle_first_step_size", &s.cycle_first_step_size).range(1, kCountMax));
  rows.push_back(key(p + "cycle_second_step_size", &s.cycle_second_step_size).range(0, kCountMax));
  rows.push_back(key(p + "cycle_first_stair_count", &s.cycle_first_stair_count).range(0, kStairs));
  rows.push_back(
      key(p + "cycle_second_stair_count", &s.cycle_second_stair_count).range(0, kStairs));
  rows.push_back(key(p + "decay_step_size", &s.decay_step_size).range(0, kCountMax));
  rows.push_back(key(p + "cycle_momentum", &s.cycle_momentum));
  rows.push_back(key(p + "cycle_min_mom", &s.cycle_min_mom).range(0, 1));
  rows.push_back(key(p + "cycle_max_mom", &s.cycle_max_mom).range(0, 1));
  rows.push_back(key(p + "decay_mom_rate", &s.decay_mom_rate).at_least(0));
}

void append_range_test(Rows& rows, ScheduleConfig& s) {
  const std::string p = "scheduler.params.lr_range_test_";
  rows.push_back(key(p + "min_lr", &s.range_test_min_lr).at_least(0));
  rows.push_back(key(p + "step_size", &s.range_test_step_size).range(1, kCountMax));
  rows.push_back(key(p + "step_rate", &s.range_test_step_rate));
  rows.push_back(key(p + "staircase", &s.range_test_staircase));
}

}  // namespace

Rows batch_rows(Config& c) {
  Rows rows;
  rows.push_back(key("train_batch_size", &c.batch.train_batch_size).range(1, kCountMax));
  rows.push_back(
      key("train_micro_batch_size_per_gpu", &c.batch.micro_batch_size).range(1, kCountMax));
  rows.push_back(
      key("gradient_accumulation_steps", &c.batch.accumulation_steps).range(1, kCountMax));
  return rows;
}

Rows optimizer_rows(Config& c) {
  OptimizerConfig& o = c.optimizer;
  const std::string p = "optimizer.params.";
  Rows rows;
  rows.push_back(key(p + "lr", &o.lr).range(0, kRateMax));
  rows.push_back(key(p + "weight_decay", &o.weight_decay).range(0, kRateMax));
  append_traits(rows, o);
  switch (o.kind) {  // the other parameters of DeepSpeed's optimizers
    case OptimizerKind::kAdam:
      append_adam(rows, o);
      break;
    case OptimizerKind::kSgd:
      append_sgd(rows, o);
      break;
    case OptimizerKind::kAdagrad:
      append_adagrad(rows);
      break;
    case OptimizerKind::kLamb:
      append_lamb(rows, o);
      break;
    case OptimizerKind::kMuon:
      append_muon(rows, o);
      break;
    default:
      break;
  }
  if (o.kind != OptimizerKind::kSgd) {
    rows.push_back(
        raw(p + "fp32_optimizer_states", Kind::kBool, "true").refused("state is kept in fp32"));
  }
  rows.push_back(raw(p + "max_grad_norm", Kind::kNumber, "null")
                     .at_least(0)
                     .unused("clips as gradient_clipping does where that is not given, as in older "
                             "versions of DeepSpeed; 0.19 refuses it: write gradient_clipping"));
  rows.push_back(raw("optimizer.legacy_fusion", Kind::kBool, "false").unused(kOneKernel));
  return rows;
}

Rows scheduler_rows(Config& c) {
  Rows rows;
  switch (c.schedule.type) {
    case ScheduleType::kConstant:
      return rows;
    case ScheduleType::kWarmup:
    case ScheduleType::kWarmupDecay:
    case ScheduleType::kWarmupCosine:
      append_warmup(rows, c.schedule);
      break;
    case ScheduleType::kOneCycle:
      append_one_cycle(rows, c.schedule);
      break;
    case ScheduleType::kRangeTest:
      append_range_test(rows, c.schedule);
      break;
  }
  rows.push_back(raw("scheduler.params.last_batch_iteration", Kind::kInt, "-1")
                     .refused("a resumed run restores the schedule's position by itself"));
  return rows;
}

Rows top_rows(Config& c) {
  Rows rows;
  rows.push_back(key("gradient_clipping", &c.gradient_clipping).at_least(0));
  rows.push_back(key("prescale_gradients", &c.prescale_gradients).unused(kOneDivision));
  rows.push_back(
      key("gradient_predivide_factor", &c.gradient_predivide_factor).above(0).unused(kOneDivision));
  rows.push_back(raw("gradient_allreduce_op", Kind::kString, "\"mean\"")
                     .one_of({"mean", "sum"})
                     .refused("gradients are averaged over ranks"));
  rows.push_back(raw("communication_data_type", Kind::kString, "null")
                     .one_of({"fp16", "bf16", "bfp16", "fp32", "float16", "bfloat16", "float32",
                              "half", "float"})
                     .unused("gradients travel in the compute type and are summed in fp32"));
  rows.push_back(raw("seq_parallel_communication_data_type", Kind::kString, "\"fp32\"")
                     .unused("ranks of a sequence group exchange activations in the compute type"));
  rows.push_back(
      raw("sparse_gradients", Kind::kBool, "false").refused("gradients of embeddings are dense"));
  rows.push_back(
      raw("managed_gradient_accumulation", Kind::kBool, "true")
          .refused("a step always ends after gradient_accumulation_steps micro-batches"));
  rows.push_back(key("steps_per_print", &c.steps_per_print).at_least(0));
  rows.push_back(key("wall_clock_breakdown", &c.wall_clock_breakdown));
  rows.push_back(raw("memory_breakdown", Kind::kBool, "false")
                     .unused("peak memory is in metrics.jsonl at every step"));
  rows.push_back(
      raw("dump_state", Kind::kBool, "false").unused("resolved_config.json is always written"));
  rows.push_back(raw("log_level", Kind::kString, "null").unused("log_level decides"));
  rows.push_back(key("dataloader_drop_last", &c.dataloader_drop_last));
  rows.push_back(key("decay_norms", &c.decay_norms));
  rows.push_back(raw("zero_allow_untested_optimizer", Kind::kBool, "false")
                     .unused("every optimizer here is tested"));
  rows.push_back(
      raw("zero_force_ds_cpu_optimizer", Kind::kBool, "true").unused("there is one CPU optimizer"));
  rows.push_back(
      raw("disable_allgather", Kind::kBool, "false").unused("without effect in DeepSpeed too"));
  rows.push_back(raw("use_data_before_expert_parallelism", Kind::kBool, "false")
                     .unused("no expert parallelism"));
  rows.push_back(raw("graph_harvesting", Kind::kBool, "false").unused("no CUDA graphs"));
  rows.push_back(
      raw("vocabulary_size", Kind::kInt, "null").unused("the model's config.json says it"));
  rows.push_back(key("sequence_parallel_size", &c.sequence_parallel_size).range(1, kCountMax));
  rows.push_back(raw("data_parallel_size", Kind::kInt, "null")
                     .unused("ranks, or groups that share rows, are data-parallel"));
  return rows;
}

}  // namespace tandem::key_rows
