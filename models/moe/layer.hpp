// models/moe/layer.hpp — DeepSpeed's MoE layer: gate, experts on the tokens that were sent to them,
// weighted sum.
//
//   y_t = sum over t's kept choices of weight * expert(x_t);   0 for a token dropped everywhere
//   residual (PR-MoE): y = c_0 * y + c_1 * mlp(x), c = softmax(coefficient(x))
// Tokens are gathered into [E, C, H] by index, and so are the experts' outputs back: there is no
// matmul with one-hot masks. Noise is a function of a seed, the gate's number and the micro-batch's
// number over all ranks and steps. So it is the same for every overlap setting, for recomputed
// activations, and for W ranks as for one with W times the micro-batches. Plain ATen: autograd
// works on it, any device. Compute lane.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/moe/gating.hpp"

namespace tandem {

/// The numbers from which a gate's noise is drawn.
struct GateDraw {
  std::uint64_t seed = 0;
  std::uint64_t gate = 0;         // number among the model's gates
  std::int64_t micro_batch = -1;  // Batch::number; below 0: not in training
  [[nodiscard]] bool training() const noexcept { return micro_batch >= 0; }
};

/// Returns the noise that the gate needs for S tokens and E experts, on `device`.
[[nodiscard]] GateNoise gate_noise(const GateOptions& options, const GateDraw& draw,
                                   std::int64_t tokens, std::int64_t experts, at::Device device);

/// [E, C, H] -> [E, C, O]: expert e on its C places, some of which may be empty (zeros).
using Experts = std::function<at::Tensor(const at::Tensor& tokens)>;

/// The same for experts that are spread over the ranks of `exchange`: each rank computes its part
/// of the E experts for all ranks. `part` maps [E, C, H] to [E, C, O] by this rank's experts; run j
/// of E / ranks entries came from rank j. All ranks of the group call it with the same shape.
/// `exchange` must live until the backward is done.
[[nodiscard]] Experts spread_over_ranks(RankExchange& exchange, Experts part);

struct MoeOutput {
  at::Tensor y;         // [S, O]
  at::Tensor aux_loss;  // fp32 scalar; the caller may add it to the loss, with a coefficient
  at::Tensor counts;    // int64 [E]: tokens that chose each expert
};

/// Returns the mixture of x [S, H]. gate: [E, H], evaluated in fp32.
[[nodiscard]] MoeOutput mixture_of_experts(const at::Tensor& x, const at::Tensor& gate,
                                           const GateOptions& options, const GateDraw& draw,
                                           const Experts& experts);

/// Returns c_0 * of_experts + c_1 * of_mlp, where c is the softmax of `coefficient`, logits [S, 2].
[[nodiscard]] at::Tensor residual_mix(const at::Tensor& of_experts, const at::Tensor& of_mlp,
                                      const at::Tensor& coefficient);

}  // namespace tandem
