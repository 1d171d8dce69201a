// models/layers/sequence/shared_rows.hpp — layers of a rank that computes a part of each row
// (Batch::part): attention of whole rows by some of the heads, sums over whole rows, and what is
// dropped where.
//
// Ulysses (Jacobs et al., 2023): before attention each rank of the group gives every other one its
// tokens' q, k and v of that one's heads, and behind it each gets its tokens of all heads back. So
// attention is that of whole rows, with its kernels as they are. A key/value head of which there
// are fewer than ranks goes to several, and the gradients that come back are added in their order.
// Where rows are neither shared nor cut into blocks all of this is nothing.
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
  /// Rows of a context, which outlives it.
  explicit SharedRows(const SegmentContext& context);

  /// Whether several ranks share them.
  [[nodiscard]] bool any() const noexcept { return exchange_ != nullptr; }
  /// Whether there is a part of each, be it all of it (RowSharing::cuts).
  [[nodiscard]] bool cut() const noexcept { return part_.count > 0; }
  /// Tokens of a whole row, `own`: of the part that activations are of.
  [[nodiscard]] std::int64_t length(std::int64_t own) const noexcept { return own * ranks_; }

  /// The part of `length` tokens that this rank computes.
  [[nodiscard]] RowPart part(std::int64_t length) const noexcept {
    return cut() ? part_ : RowPart{.count = length, .length = length};
  }
  /// The columns of this rank's tokens, of int64 [B, T].
  [[nodiscard]] at::Tensor part_of(const at::Tensor& rows) const;
  /// The same of what each token is asked for, which is the label behind it; -100 behind the last.
  [[nodiscard]] at::Tensor wanted(const at::Tensor& labels) const;

  /// Attention of this rank's heads; `shape` has all.
  [[nodiscard]] AttentionShape share_of(const AttentionShape& shape) const;
  /// qkv of the tokens at hand and all heads -> of whole rows and this rank's heads; with autograd.
  /// `shape` has all heads.
  [[nodiscard]] at::Tensor to_heads(const at::Tensor& qkv, std::int64_t own_length,
                                    const AttentionShape& shape) const;
  /// The context back: of whole rows and this rank's heads -> of the tokens at hand and all heads.
  [[nodiscard]] at::Tensor to_tokens(const at::Tensor& context, std::int64_t own_length,
                                     const AttentionShape& shape) const;

  /// The mask whose rows are tokens; that of attention's probabilities, whose rows are queries of
  /// heads. Both drop what they would of whole rows and all heads.
  [[nodiscard]] DropMask of_tokens(DropMask mask) const;
  [[nodiscard]] DropMask of_heads(DropMask mask, const AttentionShape& shape) const;

  /// The numbers of each rank, `mine.size()` each, in the group's order.
  [[nodiscard]] std::vector<double> of_all(std::span<const double> mine) const;
  [[nodiscard]] std::vector<std::uint64_t> of_all(std::span<const std::uint64_t> mine) const;
  /// `sums` (double) of all ranks, added in the group's order.
  [[nodiscard]] at::Tensor sum_of_all(const at::Tensor& sums) const;

 private:
  RankExchange* exchange_ = nullptr;
  RowPart part_;
  std::int64_t ranks_ = 1;
  std::int64_t place_ = 0;
};

}  // namespace tandem
