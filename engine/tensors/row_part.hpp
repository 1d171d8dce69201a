// engine/tensors/row_part.hpp — divides rows among ranks that share them: each computes a run of
// tokens (engine/types/row_sharing.hpp).
//
// Compute lane.
#pragma once

#include "engine/tensors/segment.hpp"
#include "engine/types/row_sharing.hpp"

namespace tandem {

/// Returns the batch with Batch::part set for this rank. Rows are padded at their end, with tokens
/// without labels, so that all ranks' parts, and all token tiles, are equally long. Compute lane.
[[nodiscard]] Batch with_part(Batch batch, const RowSharing& sharing);

/// Throws user_error on all ranks of the group unless inputs, labels and positions are the same
/// bytes on each of them: a caller's own loop could give each rank another batch. Compute lane;
/// collective in the group.
void require_same_rows(const Batch& batch, RankExchange& group);

}  // namespace tandem
