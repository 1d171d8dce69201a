#include "engine/exchange/lane_exchange.hpp"

#include <fmt/format.h>

#include "actors/collectives/awaited.hpp"
#include "runtime/flight.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

LaneExchange::LaneExchange(Communicator& communicator, const RankGroup& group, CommsLog* log,
                           std::uint8_t log_group)
    : ranks_(group.world_size),
      log_(log),
      log_group_(log_group),
      loop_({.name = fmt::format("exchange {}", communicator.rank())}),
      pool_(loop_, {.threads = 1, .name = "exchange"}),
      backend_(communicator.make_group_backend(loop_, pool_, group)) {}

void LaneExchange::all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes) {
  const TimePoint start = loop_.now();
  try {
    loop_.run([](CollectiveBackend* exchange,
                 AllToAllArguments arguments) -> Task<> { return exchange->all_to_all(arguments); },
              backend_.get(), AllToAllArguments{.from = from, .into = into, .bytes = piece_bytes});
  } catch (const PeerLost& lost) {
    if (lost.rank() != kUnknownRank) {
      flight::blame(lost.rank());
    }
    throw;
  }
  if (log_ != nullptr && ranks_ > 1) {  // the lane does nothing else meanwhile
    const Duration took = loop_.now() - start;
    log_->add({.group = log_group_,
               .ranks = static_cast<std::uint32_t>(ranks_),
               .what = flight::What::kAllToAll,
               .bytes = piece_bytes * static_cast<std::uint64_t>(ranks_)},
              took, took);
  }
}

}  // namespace tandem
