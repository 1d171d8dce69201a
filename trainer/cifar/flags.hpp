// trainer/cifar/flags.hpp — the flags of cifar10: the DeepSpeed example's names and
// defaults, and ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "models/cifar/moe_net.hpp"
#include "trainer/flags/run_flags.hpp"

namespace tandem {

struct CifarFlags : RunFlags {
  CifarFlags() {  // the example's defaults
    dtype = "fp16";
    stage = 0;
    log_interval = 2000;
    seed = 0;
  }

  double epochs = 30;
  std::string data_dir;
  std::string init_weights;
  int workers = 1;
  std::int64_t prefetch = 4;

  // Mixture of experts.
  bool moe = false;
  std::int64_t ep_world_size = 1;
  std::vector<std::int64_t> num_experts = {1};
  std::string mlp_type = "standard";
  std::int64_t top_k = 1;
  std::int64_t min_capacity = 0;
  std::string noisy_gate_policy;
  double moe_aux_loss_coef = 0;
  bool moe_param_group = false;
};

/// Parses and checks the command line; returns nullopt if the program is done (--help, --version).
/// Throws user_error.
std::optional<CifarFlags> parse_cifar_flags(int argc, const char* const* argv);

/// Returns the mixture for which --moe and its flags ask.
CifarMoe cifar_moe_of(const CifarFlags& flags);

/// Returns the example's config for --dtype and --stage, or the file of --deepspeed_config, with
/// the typed flags that stand for its keys. Throws user_error when they contradict each other, or
/// when the batch cannot be split over `world_size` ranks.
Config cifar_config(const CifarFlags& flags, int world_size);

}  // namespace tandem
