#include "engine/data/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

std::vector<std::int64_t> torch_permutation(std::int64_t n, std::uint64_t seed) {
  TANDEM_CHECK(n < (std::int64_t{1} << 32) / 20, "above this torch draws 64-bit numbers instead");
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

std::vector<std::int64_t> epoch_indices(const SamplerOptions& options, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  if (options.shuffle) {
    order = torch_permutation(options.records, options.seed + static_cast<std::uint64_t>(epoch));
  } else {
    order.resize(static_cast<std::size_t>(options.records));
    std::iota(order.begin(), order.end(), 0);
  }
  const std::int64_t blocks = (options.records + options.block - 1) / options.block;
  const std::int64_t rounds = (blocks + options.world_size - 1) / options.world_size;
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(rounds * options.block));
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t begin = (round * options.world_size + options.rank) % blocks * options.block;
    const std::int64_t end = std::min(begin + options.block, options.records);
    mine.insert(mine.end(), order.begin() + begin, order.begin() + end);
  }
  return mine;
}

}  // namespace tandem
