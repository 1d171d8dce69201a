// engine/tensors/row_part.hpp — the part of each row that this rank computes, where ranks share
// rows (engine/types/row_sharing.hpp).
//
// Compute lane.
#pragma once

#include "engine/tensors/segment.hpp"
#include "engine/types/row_sharing.hpp"

namespace tandem {

/// The batch with this rank's part in it; its rows get as many tokens more, behind all others and
/// without labels, that the parts are equal, and the blocks. Compute lane.
[[nodiscard]] Batch with_part(Batch batch, const RowSharing& sharing);

/// Throws user_error, on all ranks of the group alike, unless inputs, labels and positions are the
/// same bytes on each of them: a loop of one's own may give each rank a batch of its own. Compute
/// lane; all ranks of the group call it.
void require_same_rows(const Batch& batch, RankExchange& group);

}  // namespace tandem
