// engine/types/row_sharing.hpp — rows that several ranks share (sequence_parallel_size): which
// tokens of each this rank computes.
//
// Every rank of a group has the whole rows of its micro-batch, numbers of 8 bytes a token, and
// computes a run of tokens of each. So a label is still the token behind it, also across the cut,
// and what concerns whole rows (how many labels there are, where documents begin) needs no message.
// Invariant: all ranks of a group have parts of the same size.
#pragma once

#include <cstdint>

#include "engine/types/model.hpp"

namespace tandem {

struct RowSharing {
  std::int64_t ranks = 1;
  std::int64_t place = 0;  // of this one among them
};

/// Throws user_error unless that number of ranks can share the model's rows.
void require_row_sharing(const Model& model, std::int64_t ranks);

/// The batch with this rank's part in it; its rows get up to ranks - 1 tokens more, behind all
/// others and without labels, so that the parts are equal. Compute lane.
[[nodiscard]] Batch with_part(Batch batch, const RowSharing& sharing);

}  // namespace tandem
