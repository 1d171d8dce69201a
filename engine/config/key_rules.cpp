#include "engine/config/key_rules.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "engine/config/key_rows.hpp"
#include "engine/config/key_value.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr int kLeastScalePower = -126;
constexpr int kMostScalePower = 127;

/// A row's present value as JSON; "null" where there is no such row.
std::string value_of(std::span<const KeyRow> rows, std::string_view path) {
  const auto row = std::ranges::find(rows, path, &KeyRow::path);
  return row == rows.end() ? "null" : json_of(*row);
}

void check_precision(const Config& c, std::span<const KeyRow> rows) {
  if (c.fp16.enabled && c.bf16.enabled) {
    throw user_error("config", "{}: fp16.enabled and bf16.enabled are both true; keep one",
                     c.origin);
  }
  // The updates multiply by a scale's inverse in fp32, which is finite for these.
  const double least = std::ldexp(1.0, kLeastScalePower);
  const double most = std::ldexp(1.0, kMostScalePower);
  const std::pair<std::string_view, double> scales[] = {
      {"fp16.loss_scale", c.fp16.loss_scale}, {"fp16.min_loss_scale", c.fp16.min_loss_scale}};
  for (const auto& [name, scale] : scales) {
    if (c.fp16.enabled && scale != 0 && (scale < least || scale > most)) {
      throw user_error("config", "{}: {} is {}; it takes 0, or 2^{} to 2^{} ({:.3g} to {:.3g})",
                       c.origin, name, scale, kLeastScalePower, kMostScalePower, least, most);
    }
  }
  const double initial = std::ldexp(1.0, static_cast<int>(c.fp16.initial_scale_power));
  if (c.fp16.enabled && c.fp16.loss_scale == 0 && initial < c.fp16.min_loss_scale) {
    throw user_error("config",
                     "{}: fp16.initial_scale_power {} starts at {}, below fp16.min_loss_scale {}; "
                     "raise the one or lower the other",
                     c.origin, c.fp16.initial_scale_power, initial, c.fp16.min_loss_scale);
  }
  const std::string type = value_of(rows, "data_types.param_dtype");
  if (type != "null" && type != fmt::format("\"{}\"", name_of(c.precision()))) {
    throw user_error("config",
                     "{}: data_types.param_dtype is {}, and fp16.enabled and bf16.enabled make it "
                     "\"{}\"; remove it",
                     c.origin, type, name_of(c.precision()));
  }
}

void check_optimizer(const Config& c) {
  const OptimizerConfig& o = c.optimizer;
  if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
    throw user_error("config",
                     "{}: optimizer.params.nesterov is true with momentum {} and dampening {}; it "
                     "needs a momentum above 0 and dampening 0",
                     c.origin, o.momentum, o.dampening);
  }
  if (o.kind == OptimizerKind::kLamb && o.min_coeff > o.max_coeff) {
    throw user_error("config",
                     "{}: optimizer.params.min_coeff is {} and max_coeff {}; the trust ratio lies "
                     "between them, so raise the one or lower the other",
                     c.origin, o.min_coeff, o.max_coeff);
  }
  if (o.kind == OptimizerKind::kMuon && (o.rate() <= 0 || o.momentum >= 1)) {
    throw user_error("config",
                     "{}: Muon's learning rate is {} and its momentum {}; it needs a rate above 0 "
                     "and a momentum below 1",
                     c.origin, o.rate(), o.momentum);
  }
  const OffloadOptimizerConfig& offload = c.zero.offload_optimizer;
  if (updates_jointly(o.kind) && offload.device != "nvme" && offload.ratio < 1) {
    throw user_error("config",
                     "{}: zero_optimization.offload_optimizer.ratio is {}, and {} updates on the "
                     "host alone; write 1",
                     c.origin, c.zero.offload_optimizer.ratio, o.type);
  }
}

void check_ranks(const Config& c, std::span<const KeyRow> rows) {
  const ZeroConfig& zero = c.zero;
  const bool scaled_before = c.prescale_gradients || c.gradient_predivide_factor != 1;
  if (zero.stage >= 2 && zero.reduce_scatter && scaled_before) {
    throw user_error("config",
                     "{}: prescale_gradients is {} and gradient_predivide_factor {}; with stage {} "
                     "and reduce_scatter gradients are not scaled before the sum: remove both",
                     c.origin, c.prescale_gradients, c.gradient_predivide_factor, zero.stage);
  }
  if (zero.allgather_bucket_size % 2 != 0) {
    throw user_error("config", "{}: zero_optimization.allgather_bucket_size is {}; it must be even",
                     c.origin, zero.allgather_bucket_size);
  }
  const std::string ranks = value_of(rows, "data_parallel_size");
  if (ranks != "null" && ranks != std::to_string(c.data_ranks())) {
    throw user_error("config",
                     "{}: data_parallel_size is {}, and the world size {} with "
                     "sequence_parallel_size {} makes it {}; remove it",
                     c.origin, ranks, c.world_size, c.sequence_parallel_size, c.data_ranks());
  }
}

void check_offload(const Config& c) {
  const OffloadOptimizerConfig& offload = c.zero.offload_optimizer;
  const OffloadParamConfig& weights = c.zero.offload_param;
  if (weights.device == "nvme" && c.zero.stage != 3) {
    throw user_error("config",
                     "{}: zero_optimization.offload_param.device is \"nvme\" at stage {}, where "
                     "weights stay whole in memory; write stage 3, or \"cpu\"",
                     c.origin, c.zero.stage);
  }
  if (weights.device == "nvme" && offload.device != "nvme") {
    throw user_error("config",
                     "{}: zero_optimization.offload_param.device is \"nvme\" and "
                     "offload_optimizer.device \"{}\", and what lies on NVMe is updated there; "
                     "write \"nvme\" for both",
                     c.origin, offload.device);
  }
  if (weights.device == "nvme" && updates_jointly(c.optimizer.kind)) {
    throw user_error("config",
                     "{}: zero_optimization.offload_param.device is \"nvme\", and {} needs whole "
                     "gradients in memory; write \"cpu\"",
                     c.origin, c.optimizer.type);
  }
  if (weights.device == "nvme" && !weights.nvme_path.empty() && !offload.nvme_path.empty() &&
      weights.nvme_path != offload.nvme_path) {
    throw user_error("config",
                     "{}: zero_optimization.offload_param.nvme_path is \"{}\" and "
                     "offload_optimizer.nvme_path \"{}\", and a rank has one file; write the same",
                     c.origin, weights.nvme_path, offload.nvme_path);
  }
  if (offload.device == "cpu" && offload.ratio < 1 && c.zero.stage != 3) {
    throw user_error(
        "config",
        "{}: zero_optimization.offload_optimizer.ratio is {} at stage {}; a ratio below "
        "1 needs stage 3",
        c.origin, offload.ratio, c.zero.stage);
  }
}

class Marks {
 public:
  explicit Marks(std::vector<KeyReport>& keys) : keys_(keys) {}

  void unused(std::string_view path, std::string_view reason) {
    for (KeyReport& entry : keys_) {
      if (entry.path == path && entry.status == KeyStatus::kApplied) {
        entry.status = KeyStatus::kNotApplicable;
        entry.reason = reason;
      }
    }
  }

 private:
  std::vector<KeyReport>& keys_;
};

void mark_optimizer(Config& c, Marks& marks) {
  std::string type = c.optimizer.type;
  std::ranges::transform(type, type.begin(),
                         [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
  if (type == "adamw" && !c.optimizer.adam_w_mode) {
    c.optimizer.adam_w_mode = true;  // as in DeepSpeed
    marks.unused("optimizer.params.adam_w_mode",
                 "type AdamW is decoupled always; write type Adam for L2 decay");
  }
  const OptimizerTraits& traits = traits_of(c.optimizer.kind);
  if (c.optimizer.muon_lr && c.optimizer.adam_lr) {
    marks.unused("optimizer.params.lr", "muon_lr and adam_lr stand in its place");
  }
  if (!traits.has_betas || traits.has_momentum) {
    for (const char* name :
         {"cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}) {
      marks.unused(fmt::format("scheduler.params.{}", name),
                   traits.has_betas
                       ? "the cycle moves the betas of an optimizer that has no others beside them"
                       : "the cycle moves betas, and this optimizer has none");
    }
  }
  if (c.optimizer.kind == OptimizerKind::kSgd && c.optimizer.momentum == 0) {
    marks.unused("optimizer.params.dampening", "momentum is 0");
  }
}

void mark_fp16(const Config& c, std::span<const KeyRow> rows, Marks& marks) {
  if (!c.fp16.enabled) {
    for (const KeyRow& row : rows) {
      if (row.path.starts_with("fp16.") && row.path != "fp16.enabled") {
        marks.unused(row.path, "fp16.enabled is false");
      }
    }
  } else if (c.fp16.loss_scale != 0) {
    for (const char* name : {"initial_scale_power", "loss_scale_window", "hysteresis",
                             "consecutive_hysteresis", "min_loss_scale"}) {
      marks.unused(fmt::format("fp16.{}", name), "fp16.loss_scale is a fixed scale");
    }
  }
}

void mark_reports(const Config& c, Marks& marks) {
  if (!c.wall_clock_breakdown) {
    marks.unused("steps_per_print",
                 "log_interval decides how often a step's line is printed, and this key how often "
                 "wall_clock_breakdown's");
  }
  if (c.comms_logger.prof_all) {
    marks.unused("comms_logger.prof_ops", "comms_logger.prof_all takes every operation");
  }
}

void mark_zero(const Config& c, Marks& marks) {
  if (c.zero.stage != 3) {
    marks.unused("zero_optimization.stage3_param_persistence_threshold",
                 "below stage 3 every weight is whole on every rank");
  }
  const OffloadOptimizerConfig& offload = c.zero.offload_optimizer;
  if (offload.device == "none") {
    marks.unused("zero_optimization.offload_optimizer.device",
                 "the optimizer works in host memory whether it is written or not");
  }
  if (offload.device != "nvme") {
    for (const char* path : {"zero_optimization.offload_optimizer.nvme_path", "aio.block_size",
                             "aio.queue_depth", "aio.intra_op_parallelism"}) {
      marks.unused(path, "of NVMe, which offload_optimizer.device is not");
    }
  }
  const std::string weights = "zero_optimization.offload_param.";
  if (c.zero.offload_param.device != "nvme") {
    marks.unused(weights + "device",
                 "shards lie in host memory unless it is nvme; gathered units, in the slots, lie "
                 "where compute runs");
    for (const char* name : {"nvme_path", "max_in_cpu"}) {
      marks.unused(weights + name, "of NVMe, which offload_param.device is not");
    }
  }
  if (!offload.super_offload) {
    marks.unused("zero_optimization.offload_optimizer.super_offload",
                 "overlap decides what runs at the same time; off and comm stop it");
  }
}

}  // namespace

void check_contradictions(const Config& config, std::span<const KeyRow> rows) {
  check_precision(config, rows);
  check_optimizer(config);
  check_ranks(config, rows);
  check_offload(config);
}

void mark_without_effect(Config& config, std::span<const KeyRow> rows) {
  Marks marks(config.keys);
  mark_optimizer(config, marks);
  mark_fp16(config, rows, marks);
  mark_zero(config, marks);
  mark_reports(config, marks);
}

}  // namespace tandem
