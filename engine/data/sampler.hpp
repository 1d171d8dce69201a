// engine/data/sampler.hpp — which records a rank sees, in which order: torch's DistributedSampler, number for number.
//
// The permutation of an epoch is torch.randperm of a generator seeded with seed + epoch; the index list is padded by
// wrapping around until all ranks have the same count, and rank r takes every world_size-th index from r on.
// Pure function of its arguments: any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

/// torch.randperm(n) of a fresh CPU generator with `seed` (Fisher-Yates over mt19937); n < 2^32 / 20.
std::vector<std::int64_t> torch_permutation(std::int64_t n, std::uint64_t seed);

struct SamplerOptions {
  std::int64_t records = 0;
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
};

/// The record indices of `epoch` for this rank, in order.
std::vector<std::int64_t> epoch_indices(const SamplerOptions& options, std::int64_t epoch);

}  // namespace tandem
