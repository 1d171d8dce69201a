// engine/run/row_groups.hpp — the groups of ranks that share rows: each has micro-batches of its
// own.
#pragma once

#include <cstdint>

#include "engine/config/config.hpp"
#include "engine/distributed/communicator.hpp"

namespace tandem {

struct RowGroups {
  std::int64_t count = 1;    // groups
  std::int64_t own = 0;      // the number of this rank's group
  std::int64_t sharers = 1;  // ranks of a group, with consecutive numbers
  bool speaks = true;        // this rank counts for its group in totals over all ranks

  [[nodiscard]] static RowGroups of(const Config& config, const Communicator& communicator) {
    const std::int64_t sharers = config.sequence_parallel_size;
    return {.count = config.data_ranks(),
            .own = communicator.rank() / sharers,
            .sharers = sharers,
            .speaks = communicator.rank() % sharers == 0};
  }
};

}  // namespace tandem
