// models/cifar/moe_net.hpp — the CIFAR-10 example's net with mixtures of experts between its second
// and last linear layer.
//
// The net is conv, pool, conv, pool, 400-120-84 as in net.hpp, then one mixture for each entry of
// `experts`, whose experts are linear 84-84, then fc4 84-10. A residual net (PR-MoE) has one more
// linear layer beside the experts, shared by all mixtures. Tensors have the names of DeepSpeed's
// modules; as there, all experts start as copies of one layer. The experts of each mixture are a
// unit, and so are all other parameters together; the net is one segment.
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

/// Returns the shared parameters, and then the experts' mixture by mixture. Throws user_error for a
/// gate that is not valid, and for experts that cannot be spread evenly.
std::vector<ParameterSpec> cifar_moe_parameters(const CifarMoe& shape);

/// Returns fresh weights with torch's default bounds; all experts and the residual layer are equal.
ParameterSource cifar_moe_initial_weights(const CifarMoe& shape, std::uint64_t seed);

/// Returns the model for the engine; its batches are make_cifar_model()'s. On the CPU the trunk is
/// one fused operation, and one thread computes the whole segment; other devices use plain ATen.
Model make_cifar_moe_model(const CifarMoe& shape, ParameterSource source);

}  // namespace tandem
