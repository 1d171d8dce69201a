#include "engine/data/sampler.hpp"

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
  const std::int64_t world = options.world_size;
  const std::int64_t per_rank = (options.records + world - 1) / world;
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(per_rank));
  for (std::int64_t i = 0; i < per_rank; ++i) {
    const std::int64_t position = (i * world + options.rank) % options.records;
    mine.push_back(order[static_cast<std::size_t>(position)]);
  }
  return mine;
}

}  // namespace tandem
