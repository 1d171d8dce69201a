// models/transformer/loss_head.hpp — final norm, output projection and cross-entropy, without all
// logits in memory at once.
//
// Tokens are taken in chunks: logits of a chunk, their loss, their gradient in place, and from it
// at once the chunk's share of dh and dW. So the backward only scales what the forward left. Rows
// without a label (prompt, padding, last position) are left out from the start and cost nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/layers/norm.hpp"
#include "models/layers/sequence/shared_rows.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

/// x: [B, T, H], labels: int64 [B, T], -100 where nothing is learnt; position t is asked for label
/// t + 1. -> mean of the losses, fp32 scalar; 0 when no label is left. It is the exact sum of the
/// tokens' losses, rounded, over their number. Weight: [V, H]. Throws user_error for a label
/// outside the vocabulary. Where rows are `shared`, x is [B, own tokens, H] and labels and loss are
/// of whole rows.
at::Tensor loss_head(const at::Tensor& x, const at::Tensor& labels, Norm norm, JoinedWeights weight,
                     const SharedRows& shared = {});

/// Activations of the loss of a micro-batch whose every position is a label, for the memory plan;
/// `learns`: the output matrix does.
ActivationBytes loss_head_activations(std::int64_t hidden, std::int64_t vocabulary,
                                      const BatchShape& batch, bool learns = true);

/// Logits fp32 [B, T, V]. No autograd.
at::Tensor logits_head(const at::Tensor& x, const Norm& norm, const JoinedWeights& weight);

}  // namespace tandem
