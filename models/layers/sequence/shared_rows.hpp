// models/layers/sequence/shared_rows.hpp — lets a rank compute a part of each row (Batch::part):
// attention over whole rows for some of the heads, sums over whole rows, and dropout masks.
//
// Ulysses (Jacobs et al., 2023): before attention each rank of the group sends every other rank the
// q, k and v of its tokens for that rank's heads; after attention it gets the context of its tokens
// for all heads back. So the kernels of attention see whole rows, and need no change. If there are
// fewer key/value heads than ranks, several ranks get the same head, and the gradients that come
// back are added in the ranks' order. If rows are neither shared nor cut into blocks, these
// functions change nothing.
// Compute lane. All ranks of the group call the same in the same order.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/layers/attention.hpp"

namespace tandem {

class SharedRows {
 public:
  /// Rows are whole.
  SharedRows() = default;
  /// The rows of `context`, which must outlive this object.
  explicit SharedRows(const SegmentContext& context);

  /// Whether several ranks share the rows.
  [[nodiscard]] bool any() const noexcept { return exchange_ != nullptr; }
  /// Whether this rank has a part of each row, even if it is the whole row (RowSharing::cuts).
  [[nodiscard]] bool cut() const noexcept { return part_.count > 0; }
  /// Returns the tokens of a whole row; `own`: the tokens of the part that activations have.
  [[nodiscard]] std::int64_t length(std::int64_t own) const noexcept { return own * ranks_; }

  /// Returns the part of `length` tokens that this rank computes.
  [[nodiscard]] RowPart part(std::int64_t length) const noexcept {
    return cut() ? part_ : RowPart{.count = length, .length = length};
  }
  /// Returns the columns of this rank's tokens in `rows`, int64 [B, T].
  [[nodiscard]] at::Tensor part_of(const at::Tensor& rows) const;
  /// Returns the label that each of this rank's tokens has to predict, which is the label behind
  /// it; -100 for the last token of a row.
  [[nodiscard]] at::Tensor wanted(const at::Tensor& labels) const;

  /// Returns the shape of attention with this rank's heads; `shape` has all heads.
  [[nodiscard]] AttentionShape share_of(const AttentionShape& shape) const;
  /// Exchanges qkv of this rank's tokens and all heads for qkv of whole rows and this rank's heads;
  /// with autograd. `shape` has all heads.
  [[nodiscard]] at::Tensor to_heads(const at::Tensor& qkv, std::int64_t own_length,
                                    const AttentionShape& shape) const;
  /// Exchanges the context of whole rows and this rank's heads for the context of this rank's
  /// tokens and all heads; with autograd.
  [[nodiscard]] at::Tensor to_tokens(const at::Tensor& context, std::int64_t own_length,
                                     const AttentionShape& shape) const;

  /// These return the mask whose rows are tokens, and the mask of attention's probabilities, whose
  /// rows are queries of heads. Both drop the same elements as with whole rows and all heads.
  [[nodiscard]] DropMask of_tokens(DropMask mask) const;
  [[nodiscard]] DropMask of_heads(DropMask mask, const AttentionShape& shape) const;

  /// Returns the numbers of all ranks, `mine.size()` of each, in the group's order.
  [[nodiscard]] std::vector<double> of_all(std::span<const double> mine) const;
  [[nodiscard]] std::vector<std::uint64_t> of_all(std::span<const std::uint64_t> mine) const;
  /// Returns the `sums` (double) of all ranks, added in the group's order.
  [[nodiscard]] at::Tensor sum_of_all(const at::Tensor& sums) const;

 private:
  RankExchange* exchange_ = nullptr;
  RowPart part_;
  std::int64_t ranks_ = 1;
  std::int64_t place_ = 0;
};

}  // namespace tandem
