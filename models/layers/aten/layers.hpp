// models/layers/aten/layers.hpp — the layers of a decoder by ATen's operations, for tensors that
// our CPU kernels do not reach.
//
// They compute the same functions as the fused layers, within rounding. This file has the
// operations that stay plain autograd (embeddings, adapters, attention itself, and norms and heads
// that are too wide), and the loss, which makes logits in chunks and never holds all of them.
// row_ops.hpp has the matmuls and the operations between them. Nothing looks at the values of a
// tensor, so on a GPU the host runs ahead. Compute lane.
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

/// Returns whether a segment with these weights must use these operations.
[[nodiscard]] bool takes(std::span<Weight* const> weights);
/// Makes every segment use them from now on (true), or only segments that must (false). Tests use
/// it to compare both ways on the CPU.
void take_always(bool always) noexcept;

/// Returns y, which a layer made of x [rows, in], plus the outputs of the layer's adapters.
[[nodiscard]] at::Tensor adapted(const at::Tensor& y, const at::Tensor& x,
                                 const Adapters& adapters);

/// As causal_attention(). Packed rows attend by a mask, or document by document if they are long.
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, std::int64_t length,
                                   const AttentionShape& shape, const AttentionWeights& weights,
                                   const EarlierText& earlier = {}, const DropMask& drop = {},
                                   const at::Tensor& positions = {});

/// As the CPU's embedding(), but a token or a place outside its table is not reported here, where
/// the device would fault: Segment::check_values() does it before a batch comes to the device.
[[nodiscard]] at::Tensor embedding(const at::Tensor& tokens, const Weight& table,
                                   const Weight* positions, std::optional<std::int64_t> padding,
                                   std::int64_t begin = 0, float scale = 1,
                                   const at::Tensor& places = {});

/// Returns the loss as loss_head() does; h: [B, T, H] behind the final norm.
[[nodiscard]] at::Tensor loss(const at::Tensor& h, const at::Tensor& labels, Weight& output,
                              const SharedRows& shared = {});

/// Returns int64 [B, T]: the place in its row at which a token's document begins.
[[nodiscard]] at::Tensor begins_in_rows(const at::Tensor& positions);

/// Returns int64 [B, T]: the place in its row at which the document behind a token's begins; T if
/// there is none.
[[nodiscard]] at::Tensor ends_in_rows(const at::Tensor& positions);

/// Returns the bytes of packed rows' mask, which all layers of a micro-batch share.
[[nodiscard]] std::int64_t document_mask_bytes(const BatchShape& batch) noexcept;

/// Returns the bytes per token that the library's fused attention takes in its backward beside the
/// gradients: fp32 partial sums of the queries' gradient, one for each part that the
/// multiprocessors need (the parts are added in one order), and the gradients of keys and values
/// for each query head. If the parts would take too much, causal rows use the library's kernel with
/// one part.
[[nodiscard]] std::int64_t fused_backward_bytes(std::int64_t rows, std::int64_t length,
                                                const AttentionShape& shape) noexcept;

/// Returns the number of queries whose scores are held at a time with windows, sinks or dropout.
[[nodiscard]] std::int64_t attention_block_rows() noexcept;

/// Returns the number of tokens whose logits are held at a time.
[[nodiscard]] std::int64_t loss_chunk_rows(std::int64_t vocabulary) noexcept;

/// Returns logits fp32 [B, T, V], without autograd.
[[nodiscard]] at::Tensor logits(const at::Tensor& h, const Weight& output);

}  // namespace tandem::aten
