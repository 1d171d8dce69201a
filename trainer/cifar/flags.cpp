#include "trainer/cifar/flags.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "runtime/util/error.hpp"
#include "trainer/flags/flag_table.hpp"

namespace tandem {

namespace {

FlagGroup example_flags(CifarFlags& f) {
  return {"",
          {
              {"-e,--epochs", flags::number(f.epochs).above_zero(), "Epochs, 0.5 or 1.5, too"},
              {"--log-interval,--log_interval", flags::number(f.log_interval).above_zero(),
               "Mini-batches between loss lines"},
              {"--moe", flags::on(f.moe), "Mixtures of experts before the last layer"},
              {"--ep-world-size", flags::number(f.ep_world_size).above_zero(),
               "Ranks that share the experts, each with a part of them"},
              {"--num-experts", flags::numbers(f.num_experts).above_zero(),
               "Experts of each mixture, one number or more"},
              {"--mlp-type", flags::text(f.mlp_type).one_of({"standard", "residual"}),
               "standard or residual"},
              {"--top-k", flags::number(f.top_k), "Experts per image"},
              {"--min-capacity", flags::number(f.min_capacity).not_negative(),
               "Least places of an expert"},
              {"--noisy-gate-policy",
               flags::text(f.noisy_gate_policy).one_of({"None", "RSample", "Jitter"}),
               "None, RSample or Jitter"},
              {"--moe-aux-loss-coef", flags::number(f.moe_aux_loss_coef).not_negative(),
               "Share of the gates' loss, which is 1 where all experts are chosen alike"},
              {"--moe-param-group", flags::on(f.moe_param_group),
               "Parameter groups of their own for experts"},
          }};
}

FlagGroup own_flags(CifarFlags& f) {
  return {
      "",
      {
          {"--data_dir", flags::text(f.data_dir),
           "Folder with CIFAR-10, the binary archive; default: what `./tandem fetch dataset "
           "cifar10` got, else a generated set"},
          {"--output_dir", flags::text(f.output_dir),
           "Where metrics, summary, weights and images go; default: runs/cifar10-<time>"},
          {"--steps", flags::number(f.steps).not_negative(),
           "Stop after N optimizer steps; 0: --epochs decides"},
          {"--seed", flags::seed(f.seed), "Seed of weights and shuffle"},
          {"--init_weights", flags::text(f.init_weights),
           "safetensors file to start from; default: fresh weights"},
          {"--workers", flags::number(f.workers).above_zero(), "Threads that make micro-batches"},
          {"--prefetch", flags::number(f.prefetch).above_zero(), "Micro-batches made ahead"},
          summary_skip_flag(f),
      }};
}

void check(const CifarFlags& f) {
  check_run_flags(f);
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
  FlagTable table(app);
  table.add({example_flags(flags), own_flags(flags)});
  table.add(run_flags(flags));
  if (!parse_run_flags(app, flags, argc, argv)) {
    return std::nullopt;
  }
  table.check();
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
