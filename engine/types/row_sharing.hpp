// engine/types/row_sharing.hpp — rows that several ranks share (sequence_parallel_size): which
// tokens of each this rank computes.
//
// Every rank of a group has the whole rows of its micro-batch, numbers of 8 bytes a token, and
// computes a run of tokens of each. So a label is still the token behind it, also across the cut,
// and what concerns whole rows (how many labels there are, where documents begin) needs no message.
// Rows that are cut into blocks for sums over tokens (EngineOptions::sequence_blocks) have such a
// part even where a rank is alone, which is then all of the row.
// Invariant: all ranks of a group have parts of the same size, and all blocks have.
#pragma once

#include <cstdint>

#include "engine/types/model.hpp"

namespace tandem {

struct RowSharing {
  std::int64_t ranks = 1;
  std::int64_t place = 0;   // of this one among them
  std::int64_t blocks = 0;  // of a row; 0: it is not cut

  [[nodiscard]] bool cuts() const noexcept { return ranks > 1 || blocks > 0; }
};

/// Throws user_error unless that number of ranks can share the model's rows, and cut them into
/// `blocks`.
void require_row_sharing(const Model& model, std::int64_t ranks, std::int64_t blocks = 0);

}  // namespace tandem
