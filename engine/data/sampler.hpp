// engine/data/sampler.hpp — which records a rank sees, in which order.
//
// The permutation of an epoch is torch.randperm of a generator seeded with seed + epoch. It is
// dealt to the ranks in blocks (a micro-batch): rank r gets every world_size-th block from r on,
// wrapping around until all have the same count. Blocks of one record are torch's
// DistributedSampler, number for number. Whole micro-batches are dealt so that the step's
// micro-batch a * world_size + r has the same records however many ranks there are. Pure function
// of its arguments: any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

/// torch.randperm(n) of a fresh CPU generator with `seed` (Fisher-Yates over mt19937); n < 2^32
/// / 20.
std::vector<std::int64_t> torch_permutation(std::int64_t n, std::uint64_t seed);

struct SamplerOptions {
  std::int64_t records = 0;
  std::int64_t block = 1;  // records dealt at a time; the last block of an epoch may be shorter
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
};

/// The record indices of `epoch` for this rank, in order, block after block.
std::vector<std::int64_t> epoch_indices(const SamplerOptions& options, std::int64_t epoch);

}  // namespace tandem
