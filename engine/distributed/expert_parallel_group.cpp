#include "engine/distributed/expert_parallel_group.hpp"

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
                                         const Stage& stage, Logs logs)
    : ep_size_(ep_size),
      lane_log_(logs.lane),
      lane_loop_({.name = fmt::format("exchange {}", communicator.rank())}),
      lane_pool_(lane_loop_, {.threads = 1, .name = "exchange"}),
      replicas_(staged(
          communicator.make_group_backend(loop, pool, expert_data_group(communicator, ep_size)),
          stage)),
      exchange_(communicator.make_group_backend(lane_loop_, lane_pool_,
                                                exchange_group(communicator, ep_size))),
      collectives_({.backend = replicas_.get(),
                    .group = 1,
                    .log = logs.replicas,
                    .units = std::move(units)}) {}

void ExpertParallelGroup::all_to_all(const std::byte* from, std::byte* into,
                                     std::size_t piece_bytes) {
  const TimePoint start = lane_loop_.now();
  lane_loop_.run(
      [](CollectiveBackend* exchange, AllToAllArguments arguments) -> Task<> {
        return exchange->all_to_all(arguments);
      },
      exchange_.get(), AllToAllArguments{.from = from, .into = into, .bytes = piece_bytes});
  if (lane_log_ != nullptr && ep_size_ > 1) {  // the lane does nothing else meanwhile
    const Duration took = lane_loop_.now() - start;
    lane_log_->add({.group = 2,
                    .ranks = static_cast<std::uint32_t>(ep_size_),
                    .what = flight::What::kAllToAll,
                    .bytes = piece_bytes * static_cast<std::uint64_t>(ep_size_)},
                   took, took);
  }
}

void ExpertParallelGroup::start(Scope& scope) { collectives_.start(scope); }

void ExpertParallelGroup::close() { collectives_.close(); }

void ExpertParallelGroup::abort(std::string_view why) noexcept {
  replicas_->abort(why);
  exchange_->abort(why);
}

}  // namespace tandem
