// engine/types/row_sharing.hpp — rows that several ranks share (sequence_parallel_size): the tokens
// of each row that this rank computes.
//
// Every rank of a group has the whole rows of its micro-batch, 8 bytes per token, and computes a
// run of tokens of each. So the label of a token is in memory even if it belongs to another rank's
// run, and facts about whole rows (number of labels, beginnings of documents) need no message. With
// token tiles (EngineOptions::sequence_blocks) a rank that shares no rows has a part of each row,
// too: all of it.
// Invariant: the parts of a group's ranks have the same length, and so have all tiles.
#pragma once

#include <cstdint>

#include "engine/types/model.hpp"

namespace tandem {

struct RowSharing {
  std::int64_t ranks = 1;
  std::int64_t place = 0;   // this rank's index among them
  std::int64_t blocks = 0;  // of a row; 0: it is not cut

  [[nodiscard]] bool cuts() const noexcept { return ranks > 1 || blocks > 0; }
};

/// Throws user_error unless that number of ranks can share the model's rows, with `blocks` tiles in
/// each.
void require_row_sharing(const Model& model, std::int64_t ranks, std::int64_t blocks = 0);

}  // namespace tandem
