// models/moe/layer.hpp — DeepSpeed's MoE layer: gate, experts on the tokens that were sent to them,
// weighted sum.
//
//   y_t = sum over t's kept choices of weight * expert(x_t);   0 for a token dropped everywhere
//   residual (PR-MoE): y = c_0 * y + c_1 * mlp(x), c = softmax(coefficient(x))
// Tokens are gathered into [E, C, H] by index, and the experts' answers gathered back: no matmul
// with one-hot masks. Noise is a function of a seed, the gate's number and the micro-batch's number
// over all ranks and steps. So it is the same for every overlap setting, for recomputed
// activations, and for W ranks as for one with W times the micro-batches. Plain ATen: autograd
// works on it, any device. Compute lane.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/moe/gating.hpp"

namespace tandem {

/// Where noise comes from.
struct GateDraw {
  std::uint64_t seed = 0;
  std::uint64_t gate = 0;         // of the model's gates
  std::int64_t micro_batch = -1;  // Batch::number; below 0: not in training
  [[nodiscard]] bool training() const noexcept { return micro_batch >= 0; }
};

/// The noise that the gate needs for S tokens and E experts, on `device`.
[[nodiscard]] GateNoise gate_noise(const GateOptions& options, const GateDraw& draw,
                                   std::int64_t tokens, std::int64_t experts, at::Device device);

/// [E, C, H] -> [E, C, O]: expert e on its C places, some of which may be empty (zeros).
using Experts = std::function<at::Tensor(const at::Tensor& tokens)>;

/// The same for experts that are spread over the ranks of `exchange`: rank p's part of the E
/// experts answers there. `part`: [E, C, H] -> [E, C, O], where run j of E / ranks entries is what
/// rank j sent, for this rank's experts. All ranks of the group call it with the same shape.
/// `exchange` lives until the backward is done.
[[nodiscard]] Experts spread_over_ranks(RankExchange& exchange, Experts part);

struct MoeOutput {
  at::Tensor y;         // [S, O]
  at::Tensor aux_loss;  // fp32 scalar, to be added to the loss with a coefficient or not
  at::Tensor counts;    // int64 [E]: tokens that chose each expert
};

/// x: [S, H]; gate: [E, H], evaluated in fp32.
[[nodiscard]] MoeOutput mixture_of_experts(const at::Tensor& x, const at::Tensor& gate,
                                           const GateOptions& options, const GateDraw& draw,
                                           const Experts& experts);

/// coefficient: logits [S, 2] of the two parts.
[[nodiscard]] at::Tensor residual_mix(const at::Tensor& of_experts, const at::Tensor& of_mlp,
                                      const at::Tensor& coefficient);

}  // namespace tandem
