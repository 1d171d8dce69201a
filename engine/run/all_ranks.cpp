#include "engine/run/all_ranks.hpp"

#include <algorithm>

#include "actors/collectives/collective_backend.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

Task<std::vector<std::byte>> AllRanks::bytes(std::vector<std::byte> mine) {
  if (world_ == 1) {
    co_return mine;
  }
  std::vector<std::byte> all(mine.size() * world_);
  for (std::size_t begin = 0; begin < mine.size(); begin += kExchangeBytes) {
    const auto piece =
        std::span(mine).subspan(begin, std::min(kExchangeBytes, mine.size() - begin));
    const std::vector<std::byte> pieces =
        co_await step_.exchange(std::vector(piece.begin(), piece.end()));
    TANDEM_CHECK_EQ(pieces.size(), piece.size() * world_, "each rank tells equally much");
    for (std::size_t r = 0; r < world_; ++r) {
      std::copy_n(pieces.data() + r * piece.size(), piece.size(),
                  all.data() + r * mine.size() + begin);
    }
  }
  co_return all;
}

}  // namespace tandem
