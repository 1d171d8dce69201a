#include "trainer/cifar/flags.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "runtime/util/error.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {

namespace {

void add_example_flags(CLI::App& app, CifarFlags& f) {
  app.add_option("-e,--epochs", f.epochs, "Epochs, 0.5 or 1.5, too")->capture_default_str();
  app.add_option("--log-interval,--log_interval", f.log_interval, "Mini-batches between loss lines")
      ->capture_default_str();
  app.add_flag("--moe", f.moe, "Mixtures of experts before the last layer");
  app.add_option("--ep-world-size", f.ep_world_size,
                 "Ranks that share the experts, each with a part of them")
      ->capture_default_str();
  app.add_option("--num-experts", f.num_experts, "Experts of each mixture, one number or more")
      ->expected(1, -1);
  app.add_option("--mlp-type", f.mlp_type, "standard or residual")->capture_default_str();
  app.add_option("--top-k", f.top_k, "Experts per image")->capture_default_str();
  app.add_option("--min-capacity", f.min_capacity, "Least places of an expert")
      ->capture_default_str();
  app.add_option("--noisy-gate-policy", f.noisy_gate_policy, "None, RSample or Jitter");
  app.add_option("--moe-aux-loss-coef", f.moe_aux_loss_coef,
                 "Share of the gates' loss, which is 1 where all experts are chosen alike")
      ->capture_default_str();
  app.add_flag("--moe-param-group", f.moe_param_group, "Parameter groups of their own for experts");
}

void add_own_flags(CLI::App& app, CifarFlags& f) {
  app.add_option("--data_dir", f.data_dir,
                 "Folder with CIFAR-10, binary or Python archive; default: what `./tandem fetch "
                 "dataset cifar10` got, else a generated set");
  app.add_option("--output_dir", f.output_dir,
                 "Where metrics, summary, weights and images go; default: runs/cifar10-<time>");
  app.add_option("--steps", f.steps, "Stop after N optimizer steps; 0: --epochs decides")
      ->capture_default_str();
  add_seed(app, f.seed, "Seed of weights and shuffle");
  app.add_option("--init_weights", f.init_weights,
                 "safetensors file to start from; default: fresh weights");
  app.add_option("--workers", f.workers, "Threads that make micro-batches")->capture_default_str();
  app.add_option("--prefetch", f.prefetch, "Micro-batches made ahead")->capture_default_str();
  add_summary_skip(app, f);
}

void check(const CifarFlags& f) {
  check_run_flags(f);
  require_above_zero("--epochs", f.epochs);
  if (f.log_interval < 1) {
    throw user_error("flags", "--log-interval is {}; it counts mini-batches, from 1 on",
                     f.log_interval);
  }
  require_above_zero("--workers", f.workers);
  require_above_zero("--prefetch", static_cast<double>(f.prefetch));
  require_above_zero("--ep-world-size", static_cast<double>(f.ep_world_size));
  for (const std::int64_t experts : f.num_experts) {
    require_above_zero("--num-experts", static_cast<double>(experts));
  }
  require_one_of("--mlp-type", f.mlp_type, {"standard", "residual"});
  require_one_of("--noisy-gate-policy", f.noisy_gate_policy.empty() ? "None" : f.noisy_gate_policy,
                 {"None", "RSample", "Jitter"});
  require_not_negative("--min-capacity", static_cast<double>(f.min_capacity));
  require_not_negative("--moe-aux-loss-coef", f.moe_aux_loss_coef);
  if (f.moe_param_group && !f.moe) {
    throw user_error("flags", "--moe-param-group is about experts, and there are none; add --moe");
  }
  if (f.ep_world_size > 1 && !f.moe) {
    throw user_error("flags", "--ep-world-size is about experts, and there are none; add --moe");
  }
  if (f.moe) {
    (void)cifar_moe_parameters(cifar_moe_of(f));
  }
}

/// The config that the example builds in code, key for key.
std::string example_config(const CifarFlags& f) {
  return fmt::format(R"({{
  "train_batch_size": 16,
  "steps_per_print": 2000,
  "optimizer": {{
    "type": "Adam",
    "params": {{"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}
  }},
  "scheduler": {{
    "type": "WarmupLR",
    "params": {{"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}}
  }},
  "gradient_clipping": {},
  "prescale_gradients": false,
  "bf16": {{"enabled": {}}},
  "fp16": {{
    "enabled": {},
    "fp16_master_weights_and_grads": false,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 15
  }},
  "wall_clock_breakdown": false,
  "zero_optimization": {{
    "stage": {},
    "allgather_partitions": true,
    "reduce_scatter": true,
    "allgather_bucket_size": 50000000,
    "reduce_bucket_size": 50000000,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "cpu_offload": false
  }}
}})",
                     f.gradient_clipping.value_or(1.0), f.dtype == "bf16", f.dtype == "fp16",
                     *f.stage);
}

}  // namespace

std::optional<CifarFlags> parse_cifar_flags(int argc, const char* const* argv) {
  CifarFlags flags;
  CLI::App app("Trains the CIFAR-10 example's net with the engine.", "cifar10");
  add_example_flags(app, flags);
  add_own_flags(app, flags);
  add_run_flags(app, flags);
  if (!parse_run_flags(app, flags, argc, argv)) {
    return std::nullopt;
  }
  check(flags);
  return flags;
}

CifarMoe cifar_moe_of(const CifarFlags& flags) {
  const auto noise = flags.noisy_gate_policy == "RSample"  ? GateNoisePolicy::kRSample
                     : flags.noisy_gate_policy == "Jitter" ? GateNoisePolicy::kJitter
                                                           : GateNoisePolicy::kNone;
  return {.experts = flags.num_experts,
          .residual = flags.mlp_type == "residual",
          .gate = {.k = flags.top_k, .min_capacity = flags.min_capacity, .noise = noise},
          .aux_loss_coefficient = flags.moe_aux_loss_coef,
          .seed = static_cast<std::uint64_t>(flags.seed),
          .expert_group = flags.moe_param_group ? std::size_t{1} : 0,
          .expert_ranks = flags.ep_world_size};
}

Config cifar_config(const CifarFlags& flags, int world_size) {
  if (world_size % flags.ep_world_size != 0) {
    throw user_error(
        "flags",
        "--ep-world-size is {}, and the run's world size is {}; use a divisor of that, "
        "or start more ranks",
        flags.ep_world_size, world_size);
  }
  return run_config(flags, world_size, example_config(flags));
}

}  // namespace tandem
