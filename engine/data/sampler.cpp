#include "engine/data/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "runtime/util/error.hpp"

namespace tandem {

std::vector<std::int64_t> torch_permutation(std::int64_t n, std::uint64_t seed) {
  // Above this torch draws numbers of 64 bits instead.
  if (constexpr std::int64_t kMost = (std::int64_t{1} << 32) / 20; n >= kMost) {
    throw user_error("dataset",
                     "the data set has {} records, and {} are shuffled at most; split it", n,
                     kMost - 1);
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  // torch seeds its mt19937 with the low 32 bits of the seed.
  std::mt19937 draw(static_cast<std::uint32_t>(seed));
  for (std::int64_t i = 0; i < n - 1; ++i) {
    const auto skip = static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(n - i));
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(i + skip)]);
  }
  return order;
}

std::vector<std::int64_t> epoch_order(const SamplerOptions& options, std::int64_t epoch) {
  if (options.shuffle) {
    return torch_permutation(options.records, options.seed + static_cast<std::uint64_t>(epoch));
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(options.records));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::span<const std::int64_t> block_of_round(const SamplerOptions& options,
                                             std::span<const std::int64_t> order,
                                             std::int64_t round) {
  const std::int64_t blocks = (options.records + options.block - 1) / options.block;
  const std::int64_t begin = (round * options.world_size + options.rank) % blocks * options.block;
  const std::int64_t count = std::min(options.block, options.records - begin);
  return order.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace tandem
