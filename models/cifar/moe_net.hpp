// models/cifar/moe_net.hpp — the CIFAR-10 example's net with mixtures of experts between its second
// and last linear layer.
//
// conv, pool, conv, pool, 400-120-84 as usual; then a mixture for each entry of `experts`, whose
// experts are linear 84-84; then fc4 84-10. Residual (PR-MoE): beside the experts one linear layer,
// the same for all mixtures. Names of tensors are those of DeepSpeed's modules; as there, all
// experts start as copies of one layer. A mixture's experts are a unit of their own, all other
// parameters one more; all of it is one segment.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/model.hpp"
#include "models/moe/gating.hpp"

namespace tandem {

struct CifarMoe {
  std::vector<std::int64_t> experts = {1};  // of each mixture
  bool residual = false;
  GateOptions gate;
  double aux_loss_coefficient = 0;  // the example leaves that loss out
  std::uint64_t seed = 0;           // of the gates' noise
  std::size_t expert_group = 0;     // of InitializeArgs::parameter_groups
  // ranks that a mixture's experts are spread over; divides each of `experts`
  std::int64_t expert_ranks = 1;
};

/// All parameters, mixture by mixture. Throws user_error for a gate that cannot be, and for experts
/// that cannot be spread.
std::vector<ParameterSpec> cifar_moe_parameters(const CifarMoe& shape);

/// Fresh weights with torch's default bounds; each expert and the residual layer are the same.
ParameterSource cifar_moe_initial_weights(const CifarMoe& shape, std::uint64_t seed);

/// For the engine; batches as make_cifar_model() takes them. On the CPU the trunk is one fused
/// operation, and one thread computes all of it; elsewhere plain ATen.
Model make_cifar_moe_model(const CifarMoe& shape, ParameterSource source);

}  // namespace tandem
