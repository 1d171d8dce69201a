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

/// Returns the mask of the rows from `row` on.
[[nodiscard]] DropMask from_row(DropMask mask, std::int64_t row);

/// Returns y with the mask's elements dropped, plus `residual` if it is defined; rows of y are rows
/// of the mask, which may be empty. The result takes y's memory, so y must be the output of an
/// operation that does not need it again.
at::Tensor dropped(const at::Tensor& y, const at::Tensor& residual, const DropMask& mask);

namespace aten {

/// Returns x [..., columns] with elements dropped. Element (..., c) is the mask's (row, first + c),
/// and `rows`, int64 on x's device, has the mask's row of each of x's rows.
[[nodiscard]] at::Tensor dropped(const at::Tensor& x, const DropMask& mask, const at::Tensor& rows,
                                 std::int64_t first = 0);
/// The same with rows counted from 0; `mask` may be empty.
[[nodiscard]] at::Tensor dropped(const at::Tensor& x, const DropMask& mask);

/// Returns the bytes that are held while a mask of `elements` elements is drawn.
[[nodiscard]] std::int64_t drawing_bytes(std::int64_t elements) noexcept;

}  // namespace aten
}  // namespace tandem
