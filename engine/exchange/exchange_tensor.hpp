// engine/exchange/exchange_tensor.hpp — an all-to-all of a tensor's pieces among the ranks of a
// group.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"

namespace tandem {

/// Cuts `pieces` along its first dimension into ranks() equal parts and sends part i to rank i.
/// Returns a tensor of the same shape, type and device, whose part i came from rank i. Copies
/// through host memory if the exchange does not reach that device; `pieces` is freed before memory
/// for the copy back is allocated. Compute lane, as RankExchange::all_to_all().
[[nodiscard]] at::Tensor exchange_tensor(RankExchange& exchange, at::Tensor pieces);

}  // namespace tandem
