// models/layers/aten/layers.hpp — the layers of a decoder by ATen's operations, for tensors that
// our CPU kernels do not reach.
//
// The same functions as the fused layers, within rounding. Here is what stays plain autograd
// (embeddings, adapters, attention itself, and norms and heads that are too wide), and the loss,
// whose logits are taken in chunks and never held as a whole; matmuls and what is between them are
// row_ops.hpp's. Nothing looks at the values of a tensor, so on a GPU the host runs ahead. Compute
// lane.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/kernels/norm.hpp"
#include "models/layers/attention.hpp"
#include "models/layers/sequence/shared_rows.hpp"
#include "models/layers/weights.hpp"

namespace tandem::aten {

/// Whether a segment with these weights has to take this way.
[[nodiscard]] bool takes(std::span<Weight* const> weights);
/// Lets every segment take this way from now on, or only those that have to. Tests compare both
/// ways on the CPU by it.
void take_always(bool always) noexcept;

/// y plus what the adapters of the layer that made it of x add; x: [rows, in].
[[nodiscard]] at::Tensor adapted(const at::Tensor& y, const at::Tensor& x,
                                 const Adapters& adapters);

/// As causal_attention(); packed rows by a mask.
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, std::int64_t length,
                                   const AttentionShape& shape, const AttentionWeights& weights,
                                   const EarlierText& earlier = {}, const DropMask& drop = {},
                                   const at::Tensor& positions = {});

/// As embedding(). A token or a place outside its table is not found here: the device faults.
[[nodiscard]] at::Tensor embedding(const at::Tensor& tokens, const Weight& table,
                                   const Weight* positions, std::optional<std::int64_t> padding,
                                   std::int64_t begin = 0, float scale = 1,
                                   const at::Tensor& places = {});

/// h: [B, T, H] behind the final norm; as loss_head() from there on.
[[nodiscard]] at::Tensor loss(const at::Tensor& h, const at::Tensor& labels, Weight& output,
                              const SharedRows& shared = {});

/// [B, T], int64: where in its row the document of a token begins.
[[nodiscard]] at::Tensor begins_in_rows(const at::Tensor& positions);

/// [B, T], int64: where in its row the document behind a token's begins; T if there is none.
[[nodiscard]] at::Tensor ends_in_rows(const at::Tensor& positions);

/// Bytes of the mask that packed rows share, in all layers of a micro-batch.
[[nodiscard]] std::int64_t document_mask_bytes(const BatchShape& batch) noexcept;

/// Bytes that the library's fused attention takes in its backward beside the gradients, for a
/// token: a partial sum of the queries' gradient in fp32 for each of as many parts as
/// multiprocessors need, since they are added in one order, and the gradients of keys and values
/// for each query head. Where the parts would take too much, causal rows go by the library's kernel
/// that has one part.
[[nodiscard]] std::int64_t fused_backward_bytes(std::int64_t rows, std::int64_t length,
                                                const AttentionShape& shape) noexcept;

/// Queries whose scores are held at a time where windows, sinks or dropout ask for that.
[[nodiscard]] std::int64_t attention_block_rows() noexcept;

/// Tokens whose logits are held at a time.
[[nodiscard]] std::int64_t loss_chunk_rows(std::int64_t vocabulary) noexcept;

/// Logits fp32 [B, T, V]. No autograd.
[[nodiscard]] at::Tensor logits(const at::Tensor& h, const Weight& output);

}  // namespace tandem::aten
