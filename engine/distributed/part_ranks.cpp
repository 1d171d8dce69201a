#include "engine/distributed/part_ranks.hpp"

#include <utility>

#include <fmt/format.h>

namespace tandem {

namespace {

RankGroup ranks_of_part(const Communicator& communicator, std::int64_t parts) {
  const int of_part = communicator.world_size() / static_cast<int>(parts);
  const int part = communicator.rank() / of_part;
  return {.name = fmt::format("part-{}", part),
          .rank = communicator.rank() % of_part,
          .world_size = of_part};
}

std::unique_ptr<CollectiveBackend> staged(std::unique_ptr<CollectiveBackend> part,
                                          const PartRanks::Stage& stage) {
  return stage ? stage(std::move(part)) : std::move(part);
}

RankGroup exchange_group(const Communicator& communicator, std::int64_t parts) {
  const int of_part = communicator.world_size() / static_cast<int>(parts);
  return {.name = fmt::format("exchange-{}", communicator.rank() % of_part),
          .rank = communicator.rank() / of_part,
          .world_size = static_cast<int>(parts)};
}

}  // namespace

PartRanks::PartRanks(Communicator& communicator, EventLoop& loop, CpuPool& pool, std::int64_t parts,
                     const Stage& stage)
    : parts_(parts),
      lane_loop_({.name = fmt::format("exchange {}", communicator.rank())}),
      lane_pool_(lane_loop_, {.threads = 1, .name = "exchange"}),
      part_(staged(communicator.make_group_backend(loop, pool, ranks_of_part(communicator, parts)),
                   stage)),
      exchange_(communicator.make_group_backend(lane_loop_, lane_pool_,
                                                exchange_group(communicator, parts))),
      collectives_({.backend = part_.get()}) {}

void PartRanks::all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes) {
  lane_loop_.run(
      [](CollectiveBackend* exchange, AllToAllArguments arguments) -> Task<> {
        return exchange->all_to_all(arguments);
      },
      exchange_.get(), AllToAllArguments{.from = from, .into = into, .bytes = piece_bytes});
}

void PartRanks::start(Scope& scope) { collectives_.start(scope); }

void PartRanks::close() { collectives_.close(); }

void PartRanks::abandon(std::string_view why) noexcept {
  part_->abandon(why);
  exchange_->abandon(why);
}

}  // namespace tandem
