// engine/exchange/exchange_tensor.hpp — a tensor's pieces to the ranks of a group, and theirs back.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"

namespace tandem {

/// `pieces` is cut along its first dimension into ranks() equal parts, of which part i goes to rank
/// i; what came of rank i is part i of the result, which has the same shape, type and device. Where
/// the exchange does not reach that device, by way of host memory. `pieces` goes before what the
/// way back needs is made. Compute lane, as RankExchange::all_to_all().
[[nodiscard]] at::Tensor exchange_tensor(RankExchange& exchange, at::Tensor pieces);

}  // namespace tandem
