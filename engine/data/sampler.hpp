// engine/data/sampler.hpp — which records a rank sees, in which order.
//
// The permutation of an epoch is torch.randperm of a generator seeded with seed + epoch. It is
// divided into groups of `block` records (a micro-batch): in round k rank r gets group k *
// world_size + r, modulo their number, so that all ranks get equally many. Groups of one record
// give torch's DistributedSampler, number for number. With whole micro-batches the step's
// micro-batch a * world_size + r has the same records for every number of ranks. Pure function of
// its arguments: any thread.
#pragma once

#include <cstdint>
#include <span>
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

/// The record indices of `epoch`, of all ranks.
std::vector<std::int64_t> epoch_order(const SamplerOptions& options, std::int64_t epoch);
/// Returns this rank's records of a round, as a part of that order.
std::span<const std::int64_t> block_of_round(const SamplerOptions& options,
                                             std::span<const std::int64_t> order,
                                             std::int64_t round);

}  // namespace tandem
