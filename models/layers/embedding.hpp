// models/layers/embedding.hpp — token ids to activations.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"

namespace tandem {

/// tokens: int64 [B, T] -> scale * table rows, [B, T, width]; + positions[begin + t] if given
/// (null: none; `begin` only without backward), or positions[places[b, t]] where `places`
/// (Batch::positions) are defined. The row `padding` of the table gets no gradient (torch's
/// padding_idx). Throws user_error for a token outside the table or a text longer than `positions`.
at::Tensor embedding(const at::Tensor& tokens, Weight& table, Weight* positions,
                     std::optional<std::int64_t> padding, std::int64_t begin = 0, float scale = 1,
                     const at::Tensor& places = {});

}  // namespace tandem
