// models/transformer/loss_head.hpp — final norm, output projection and cross-entropy, without all
// logits in memory at once.
//
// The forward takes tokens in chunks. It computes a chunk's logits, their loss, their gradient in
// place, and from it the chunk's share of dh and dW. So the backward only has to scale dh and dW,
// and to run the norm's backward. Rows without a label (prompt, padding, last position) are left
// out from the start and cost nothing.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "models/layers/norm.hpp"
#include "models/layers/sequence/shared_rows.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

/// Returns the mean of the losses, an fp32 scalar: the exact sum of the tokens' losses, rounded,
/// over their number; 0 if there is no label. x: [B, T, H]; labels: int64 [B, T], -100 where
/// nothing is learnt; position t has to predict label t + 1. weight: [V, H]. Throws user_error for
/// a label outside the vocabulary. If rows are `shared`, x is [B, own tokens, H], and labels and
/// loss are of whole rows.
at::Tensor loss_head(const at::Tensor& x, const at::Tensor& labels, Norm norm, JoinedWeights weight,
                     const SharedRows& shared = {});

/// Returns the number of labels that are learnt. Throws user_error for one outside the vocabulary.
/// labels: int64 [B, T] in host memory. Any thread.
std::int64_t count_labels(const at::Tensor& labels, std::int64_t vocabulary);

/// Returns the activations of the loss for a micro-batch in which every position has a label, for
/// the memory plan; `learns`: the output matrix learns.
ActivationBytes loss_head_activations(std::int64_t hidden, std::int64_t vocabulary,
                                      const BatchShape& batch, bool learns = true);

/// Returns logits fp32 [B, T, V], without autograd.
at::Tensor logits_head(const at::Tensor& x, const Norm& norm, const JoinedWeights& weight);

}  // namespace tandem
