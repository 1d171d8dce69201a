// models/moe/gating.hpp — routes tokens to experts: the top-1, top-2 and top-k gates of DeepSpeed's
// MoE layer.
//
// Routes are indices, not one-hot masks [S, E, C]: a token's j-th choice is an expert, a place
// among that expert's tokens and a weight. Nothing here looks at a value on the host, so on a GPU
// the host runs ahead.
// Invariant: with the same logits and noise the routes are the same; equal scores go to the lower
// index, equal priorities to the earlier token (DeepSpeed leaves both to topk). Compute lane.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace tandem {

enum class GateNoisePolicy : std::uint8_t {
  kNone,
  kJitter,   // the gate sees inputs times U(0.99, 1.01) while training
  kRSample,  // top-1: Gumbel noise on the logits decides the choice, not its weight, while training
};

/// The rule by which tokens are left out if more of them choose an expert than it has places; for
/// top-k of three and more.
enum class DropPolicy : std::uint8_t { kProbabilities, kPosition };

struct GateOptions {
  std::int64_t k = 1;
  double capacity_factor = 1.0;
  double eval_capacity_factor = 1.0;
  std::int64_t min_capacity = 4;
  bool drops_tokens = true;  // false: each expert has a place for every token
  DropPolicy drop_policy = DropPolicy::kProbabilities;
  bool random_token_selection = true;  // top-1: places are drawn; false: first come
  bool samples_second = true;          // top-2: Gumbel noise on the second choice
  GateNoisePolicy noise = GateNoisePolicy::kNone;
};

/// The noise of a gate, [S, E], fp32; a tensor is undefined if the gate does not use it.
struct GateNoise {
  at::Tensor uniform;  // for random token selection, in (0, 1)
  at::Tensor gumbel;   // for kRSample and samples_second
};

struct GateRoutes {
  at::Tensor expert;    // int64 [k, S]
  at::Tensor location;  // int64 [k, S]: place among the expert's tokens
  at::Tensor kept;      // bool [k, S]
  at::Tensor weight;    // fp32 [k, S], with autograd; 0 for choices that are not kept
  at::Tensor aux_loss;  // fp32 scalar: how unevenly the experts are chosen; 1 if evenly
  at::Tensor counts;    // int64 [E]: tokens that chose each expert, dropped ones included
  std::int64_t capacity = 0;
};

/// Returns the places of one expert: tokens / experts * factor * k, rounded up, at least
/// `min_capacity`, and no more than tokens.
[[nodiscard]] std::int64_t gate_capacity(std::int64_t tokens, std::int64_t experts,
                                         const GateOptions& options, bool training);

/// Returns the routes of logits fp32 [S, E]. `used`: fp32 [S], 0 for a token that goes nowhere
/// (top-1; may be undefined).
[[nodiscard]] GateRoutes route(const at::Tensor& logits, const GateOptions& options,
                               const GateNoise& noise, bool training, const at::Tensor& used = {});

/// Throws user_error for options that no gate of `experts` experts can have.
void require_gate(const GateOptions& options, std::int64_t experts, std::string_view where);

}  // namespace tandem
