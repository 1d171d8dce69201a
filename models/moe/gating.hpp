// models/moe/gating.hpp — DeepSpeed's gates: which tokens go to which experts, and how many an expert takes.
//
// Each expert has `capacity` places. Top-1 keeps the probability as the weight; with more experts a token's weights add up
// to 1 over those that took it. Random choices come as tensors from the caller, so that a run can be repeated. Plain ATen
// with autograd: gradients reach the logits through the weights and the auxiliary loss.
// Invariant: no two tokens have the same place of an expert; a token that found no place has weight 0 there.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tandem {

/// Who is dropped where more than `capacity` tokens want an expert, with k > 2.
enum class DropPolicy : std::uint8_t { kProbability, kPosition };

struct GateRule {
  std::int64_t k = 1;
  double capacity_factor = 1.0;
  std::int64_t min_capacity = 4;
  /// Otherwise the capacity is the largest count of any expert: the host waits for it.
  bool drop_tokens = true;
  DropPolicy drop_policy = DropPolicy::kProbability;
};

/// Undefined: none.
struct GateNoise {
  at::Tensor
      uniform;  // [tokens, experts], top-1: decides who is kept; without it those that come first are
  at::Tensor
      gumbel;  // [tokens, experts], added to the logits: of top-1's choice, of top-2's second one
  at::Tensor used;  // [tokens], top-1: 0 where a token goes nowhere
};

struct Gated {
  std::int64_t capacity = 0;
  at::Tensor loss;    // auxiliary: large where few experts get most tokens; scalar
  at::Tensor weight;  // fp32 [tokens, experts], 0 where a token does not go
  at::Tensor kept;    // bool [tokens, experts]
  at::Tensor place;   // int64 [tokens, experts], where kept
  at::Tensor counts;  // int64 [experts]: tokens that chose it, before any was dropped
};

/// logits: fp32 [tokens, experts], experts >= k. Compute lane.
Gated gate(const at::Tensor& logits, const GateRule& rule, const GateNoise& noise = {});

/// x: [tokens, width] -> [experts, capacity, width]; places that nobody took are zero.
at::Tensor dispatch(const at::Tensor& x, const Gated& gated);
/// y: [experts, capacity, width] -> [tokens, width]: the sum of weight * y over the experts that took a token.
at::Tensor combine(const at::Tensor& y, const Gated& gated);

}  // namespace tandem
