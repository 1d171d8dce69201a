// models/layers/embedding.hpp — converts token ids to activations.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"

namespace tandem {

/// Returns scale * the table's rows of tokens (int64 [B, T]), as [B, T, width]. Adds
/// positions[begin + t] if `positions` is not null (`begin` only without backward), or
/// positions[places[b, t]] if `places` (Batch::positions) is defined, too. The row `padding` of the
/// table gets no gradient (torch's padding_idx). Throws user_error for a token outside the table or
/// a text longer than `positions`.
at::Tensor embedding(const at::Tensor& tokens, Weight& table, Weight* positions,
                     std::optional<std::int64_t> padding, std::int64_t begin = 0, float scale = 1,
                     const at::Tensor& places = {});

/// Throws user_error for a token outside of `entries`, and for a text of more tokens, `begin`
/// earlier ones included, than there are `positions` (0: the model has no table of them). tokens,
/// places: int64 [B, T] in host memory. Any thread.
void check_embedded(const at::Tensor& tokens, std::int64_t entries, std::int64_t positions,
                    std::int64_t begin = 0, const at::Tensor& places = {});

}  // namespace tandem
