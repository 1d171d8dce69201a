// models/layers/aten/experts.hpp — experts by ATen's operations, for tensors that our CPU
// kernels do not reach.
//
// The host looks at no value: shapes follow from the number of tokens alone. Each expert's rows are
// padded to whole blocks of rows, a block is multiplied with its expert's matrix, and there are
// always as many blocks as any routes can need.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/layers/aten/row_ops.hpp"
#include "models/layers/experts.hpp"

namespace tandem::aten {

/// Returns the sum of w_e Expert_e(h), without a residual: the part of expert_mixture() behind norm
/// and router. h: [tokens, hidden] behind the norm; logits: [tokens, experts]. Gradients of the
/// experts' weights go straight into Weight::grad. Compute lane.
[[nodiscard]] at::Tensor experts(const at::Tensor& h, const at::Tensor& logits,
                                 std::span<Weight* const> weights, const ExpertShape& shape,
                                 Result result = Result::kRead);

/// Returns the most rows that whole blocks can take for `rows` rows of all experts.
[[nodiscard]] std::int64_t padded_expert_rows(std::int64_t rows, std::int64_t experts) noexcept;

}  // namespace tandem::aten
