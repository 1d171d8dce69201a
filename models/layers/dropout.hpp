// models/layers/dropout.hpp — dropout as one node, with the sum that follows it.
//
// There are two ways to compute it: our kernels, and ATen's operations for tensors that those do
// not reach. Both draw the same mask. Nothing is kept for the backward, which draws it again.
// Compute lane.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "models/kernels/dropout.hpp"

namespace tandem {

/// The dropout of one layer.
struct LayerDropout {
  DropoutRates rates;
  std::uint64_t seed = 0;
  std::int64_t layer = 0;

  /// Empty outside of training, and where the rate is 0.
  [[nodiscard]] DropMask mask(DropPlace place, std::int64_t micro_batch) const;
};

/// The mask of the rows from `row` on.
[[nodiscard]] DropMask from_row(DropMask mask, std::int64_t row);

/// (residual +) y without what is dropped; rows of y are the mask's. The result takes y's memory: y
/// is the output of an operation that does not need it again. `residual` may be undefined, `mask`
/// may be empty.
at::Tensor dropped(const at::Tensor& y, const at::Tensor& residual, const DropMask& mask);

namespace aten {

/// x without what is dropped. x: [..., columns]; element (..., c) is the mask's (row, first + c),
/// where `rows`, int64 on x's device, has one number for each of x's rows.
[[nodiscard]] at::Tensor dropped(const at::Tensor& x, const DropMask& mask, const at::Tensor& rows,
                                 std::int64_t first = 0);
/// The same with rows counted from 0; `mask` may be empty.
[[nodiscard]] at::Tensor dropped(const at::Tensor& x, const DropMask& mask);

/// Bytes that drawing the mask of `elements` elements holds for a moment.
[[nodiscard]] std::int64_t drawing_bytes(std::int64_t elements) noexcept;

}  // namespace aten
}  // namespace tandem
