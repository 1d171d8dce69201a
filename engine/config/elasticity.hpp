// engine/config/elasticity.hpp — DeepSpeed's `elasticity` settings: given the largest global batch
// and the possible micro-batches, computes the batch that suits the most world sizes, and the
// micro-batch for this world size.
//
// Version 0.1 considers numbers of ranks, 0.2 numbers of hosts with num_gpus_per_node ranks each.
// If 0.2's batch does not suit this world size, the batch nearest to the bound that does is taken.
// Pure: any thread.
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

/// Throws user_error, which begins with `origin` and names the possible world sizes, if no batch
/// suits `world` ranks.
[[nodiscard]] ElasticBatch solve_elastic(const ElasticRule& rule, std::int64_t world,
                                         std::string_view origin);

/// If elasticity is on, sets the batch keys. Throws user_error if a batch key has another value and
/// elasticity's own setting does not ignore it.
void apply_elasticity(Config& config, std::span<const KeyRow> rows);

}  // namespace tandem
