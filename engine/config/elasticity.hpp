// engine/config/elasticity.hpp — DeepSpeed's `elasticity` block: from a bound on the global batch
// and the micro-batches that fit, the batch that the most numbers of ranks can share, and this
// number's micro-batch.
//
// Version 0.1 looks at numbers of ranks, 0.2 at numbers of hosts with num_gpus_per_node ranks each;
// where 0.2's batch does not suit the ranks that there are, it takes the nearest one to the bound
// that does. Pure: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/config/key_table.hpp"

namespace tandem {

struct ElasticRule {
  std::int64_t most_batch = 2000;  // max_train_batch_size
  std::vector<std::int64_t> micro_batches = {2, 4, 6};
  std::int64_t least_ranks = 1;
  std::int64_t most_ranks = 10'000;
  std::int64_t ranks_per_host = 1;
  bool prefer_larger = true;  // batch, where two suit equally many numbers of ranks
  bool by_hosts = true;       // version 0.2
};

struct ElasticBatch {
  std::int64_t batch = 0;
  std::int64_t micro_batch = 0;
  std::vector<std::int64_t> worlds;  // numbers of ranks that can share it, ascending
};

/// Throws user_error, `origin` before it, where no batch suits `world` ranks: with what would.
[[nodiscard]] ElasticBatch solve_elastic(const ElasticRule& rule, std::int64_t world,
                                         std::string_view origin);

/// Where the block is there and on, the batch keys become what it says. Throws user_error for a
/// batch key that says something else, and is not ignored by its own flag.
void apply_elasticity(Config& config, std::span<const KeyRow> rows);

}  // namespace tandem
