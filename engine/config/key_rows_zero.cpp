// Rows of zero_optimization.
#include "engine/config/key_rows.hpp"

namespace tandem::key_rows {
namespace {

void append_stage3(Rows& rows, ZeroConfig& z) {
  const std::string p = "zero_optimization.stage3_";
  rows.push_back(key(p + "prefetch_bucket_size", &z.prefetch_bucket_size)
                     .at_least(0)
                     .unused("gather_slots bounds what is gathered ahead"));
  rows.push_back(
      key(p + "param_persistence_threshold", &z.param_persistence_threshold).at_least(0));
  rows.push_back(key(p + "model_persistence_threshold", &z.model_persistence_threshold)
                     .at_least(0)
                     .unused("stage3_param_persistence_threshold decides, unit by unit"));
  rows.push_back(key(p + "max_live_parameters", &z.max_live_parameters)
                     .at_least(0)
                     .unused("gather_slots bounds the gathered weights"));
  rows.push_back(key(p + "max_reuse_distance", &z.max_reuse_distance)
                     .at_least(0)
                     .unused("the plan knows each unit's next use exactly"));
  rows.push_back(
      key(p + "gather_16bit_weights_on_model_save", &z.gather_16bit_weights_on_model_save)
          .unused("a saved model is always whole"));
  rows.push_back(raw(p + "module_granularity_threshold", Kind::kInt, "0").unused(kUnits));
  rows.push_back(raw(p + "use_all_reduce_for_fetch_params", Kind::kBool, "false")
                     .unused("gathers are all-gathers"));
  rows.push_back(raw(p + "allgather_sequential", Kind::kBool, "false")
                     .unused("gathers always run in the plan's order"));
}

void append_offload(Rows& rows, ZeroConfig& z) {
  std::string p = "zero_optimization.offload_optimizer.";
  OffloadOptimizerConfig& o = z.offload_optimizer;
  rows.push_back(key(p + "device", &o.device).one_of({"none", "cpu", "nvme"}));
  rows.push_back(key(p + "nvme_path", &o.nvme_path));
  rows.push_back(key(p + "pin_memory", &o.pin_memory).unused(kPinning));
  rows.push_back(key(p + "ratio", &o.ratio).range(0, 1));
  rows.push_back(key(p + "super_offload", &o.super_offload));
  rows.push_back(key(p + "cpuadam_cores_perc", &o.cpuadam_cores_perc).range(0, 1).above(0));
  rows.push_back(raw(p + "buffer_count", Kind::kInt, "4")
                     .unused("state passes from and to NVMe in four slices at a time"));
  rows.push_back(raw(p + "fast_init", Kind::kBool, "false")
                     .unused("state on NVMe begins as a file without content"));
  for (const char* name : {"pipeline_read", "pipeline_write"}) {
    rows.push_back(raw(p + name, Kind::kBool, "false")
                       .unused("reads and writes of NVMe always run beside updates"));
  }
  p = "zero_optimization.offload_param.";
  constexpr std::string_view kSlots =
      "weights on NVMe are read into the gather slots, as far ahead as there are slots";
  rows.push_back(key(p + "device", &z.offload_param.device).one_of({"none", "cpu", "nvme"}));
  rows.push_back(key(p + "nvme_path", &z.offload_param.nvme_path));
  rows.push_back(key(p + "pin_memory", &z.offload_param.pin_memory).unused(kPinning));
  rows.push_back(raw(p + "buffer_count", Kind::kInt, "5").unused(kSlots));
  rows.push_back(raw(p + "buffer_size", Kind::kInt, "100000000").unused(kSlots));
  rows.push_back(key(p + "max_in_cpu", &z.offload_param.max_in_cpu).at_least(0));
}

}  // namespace

Rows zero_rows(Config& c) {
  ZeroConfig& z = c.zero;
  const std::string p = "zero_optimization.";
  Rows rows;
  rows.push_back(key(p + "stage", &z.stage).range(0, 3));
  rows.push_back(key(p + "overlap_comm", &z.overlap_comm)
                     .unused("overlap decides what runs at the same time"));
  rows.push_back(key(p + "contiguous_gradients", &z.contiguous_gradients).unused("always so here"));
  rows.push_back(key(p + "reduce_scatter", &z.reduce_scatter)
                     .unused("stages 1 to 3 reduce by reduce-scatter; the sums are the same"));
  rows.push_back(key(p + "reduce_bucket_size", &z.reduce_bucket_size).at_least(0).unused(kUnits));
  rows.push_back(
      key(p + "allgather_bucket_size", &z.allgather_bucket_size).at_least(0).unused(kUnits));
  rows.push_back(key(p + "sub_group_size", &z.sub_group_size).at_least(0).unused(kUnits));
  rows.push_back(raw(p + "allgather_partitions", Kind::kBool, "true")
                     .unused("without effect in DeepSpeed too"));
  rows.push_back(raw(p + "use_multi_rank_bucket_allreduce", Kind::kBool, "true")
                     .unused("reductions are true reduce-scatters"));
  rows.push_back(raw(p + "load_from_fp32_weights", Kind::kBool, "true").unused(kOwnCheckpoints));
  rows.push_back(raw(p + "elastic_checkpoint", Kind::kBool, "false").unused(kOwnCheckpoints));
  rows.push_back(raw(p + "round_robin_gradients", Kind::kBool, "false").unused(kUnits));
  rows.push_back(raw(p + "ignore_unused_parameters", Kind::kBool, "true")
                     .unused("a parameter without a gradient keeps a gradient of zero"));
  rows.push_back(
      raw(p + "legacy_stage1", Kind::kBool, "false").refused("DeepSpeed dropped it too"));
  append_stage3(rows, z);
  rows.push_back(raw(p + "memory_efficient_linear", Kind::kBool, "true")
                     .unused("every layer frees what backward does not need"));
  constexpr std::string_view kLayout =
      "a layout for several hosts; weights are gathered from all ranks, and have the same values";
  rows.push_back(raw(p + "zero_hpz_partition_size", Kind::kInt, "1").unused(kLayout));
  for (const char* name : {"zero_quantized_weights", "zero_quantized_nontrainable_weights",
                           "zero_quantized_gradients"}) {
    rows.push_back(
        raw(p + name, Kind::kBool, "false").refused("ZeRO++: what ranks exchange is exact"));
  }
  rows.push_back(block(p + "zeropp_loco_param").refused("ZeRO++: what ranks exchange is exact"));
  rows.push_back(raw(p + "mics_shard_size", Kind::kInt, "-1").unused(kLayout));
  rows.push_back(raw(p + "mics_hierarchical_params_gather", Kind::kBool, "false").unused(kLayout));
  rows.push_back(
      raw(p + "override_module_apply", Kind::kBool, "true").unused("there are no Python modules"));
  rows.push_back(
      raw(p + "pipeline_loading_checkpoint", Kind::kBool, "false").unused(kOwnCheckpoints));
  rows.push_back(raw(p + "log_trace_cache_warnings", Kind::kBool, "false")
                     .unused("the plan is known before the first step"));
  rows.push_back(
      raw(p + "enable_sanity_checks", Kind::kBool, "false").unused("the checks are always on"));
  for (const char* name : {"classes", "names", "name_suffixes"}) {
    rows.push_back(raw(p + "leaf_module." + name, Kind::kList, "[]").unused(kUnits));
  }
  append_offload(rows, z);
  rows.push_back(block(p + "zenflow")
                     .refused("it changes what is learnt: updates come late; super_offload hides "
                              "the optimizer exactly"));
  return rows;
}

}  // namespace tandem::key_rows
