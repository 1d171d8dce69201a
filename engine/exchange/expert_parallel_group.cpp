#include "engine/exchange/expert_parallel_group.hpp"

#include <utility>

#include <fmt/format.h>

namespace tandem {

namespace {

RankGroup expert_data_group(const Communicator& communicator, std::int64_t ep_size) {
  const int replicas = communicator.world_size() / static_cast<int>(ep_size);
  const int slice = communicator.rank() / replicas;
  return {.name = fmt::format("experts-{}", slice),
          .rank = communicator.rank() % replicas,
          .world_size = replicas};
}

std::unique_ptr<CollectiveBackend> staged(std::unique_ptr<CollectiveBackend> slice,
                                          const ExpertParallelGroup::Stage& stage) {
  return stage ? stage(std::move(slice)) : std::move(slice);
}

RankGroup exchange_group(const Communicator& communicator, std::int64_t ep_size) {
  const int replicas = communicator.world_size() / static_cast<int>(ep_size);
  return {.name = fmt::format("exchange-{}", communicator.rank() % replicas),
          .rank = communicator.rank() / replicas,
          .world_size = static_cast<int>(ep_size)};
}

}  // namespace

ExpertParallelGroup::ExpertParallelGroup(Communicator& communicator, EventLoop& loop, CpuPool& pool,
                                         std::int64_t ep_size, std::vector<std::string> units,
                                         const Place& place, Logs logs)
    : replicas_(staged(
          communicator.make_group_backend(loop, pool, expert_data_group(communicator, ep_size)),
          place.stage)),
      exchange_(communicator, exchange_group(communicator, ep_size), place.gpu, logs.lane, 2),
      collectives_({.backend = replicas_.get(),
                    .group = 1,
                    .log = logs.replicas,
                    .units = std::move(units)}) {}

void ExpertParallelGroup::give_up(const std::exception& cause) noexcept {
  replicas_->give_up(cause);
  exchange_.give_up(cause);
}

}  // namespace tandem
