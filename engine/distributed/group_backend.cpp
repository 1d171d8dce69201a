#include "engine/distributed/group_backend.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/io/net.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

std::vector<int> members_of(Communicator& communicator, const RankGroup& group) {
  std::vector<int> members(static_cast<std::size_t>(group.world_size), -1);
  const std::vector<std::string> places =
      communicator.of_all_ranks(fmt::format("{}/{}", group.name, group.rank));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    for (int place = 0; place < group.world_size; ++place) {
      if (places[rank] == fmt::format("{}/{}", group.name, place)) {
        members[static_cast<std::size_t>(place)] = static_cast<int>(rank);
      }
    }
  }
  TANDEM_CHECK(std::ranges::find(members, -1) == members.end(),
               "each place of a group is a rank's");
  return members;
}

// A rank outside of the group has the number behind the members' that its own one makes; one that
// is not known, UINT32_MAX, stays so.
void GroupBackend::fail(std::uint32_t failed_rank, std::string_view why) noexcept {
  const auto count = static_cast<std::uint32_t>(members_.size());
  const auto member = std::ranges::find(members_, static_cast<int>(failed_rank));
  if (member != members_.end()) {
    failed_rank = static_cast<std::uint32_t>(member - members_.begin());
  } else if (failed_rank < UINT32_MAX - count) {
    failed_rank += count;
  }
  inner_->fail(failed_rank, why);
}

template <class Result, class Arguments>
Task<Result> GroupBackend::in_run(Task<Result> (CollectiveBackend::*operation)(Arguments),
                                  Arguments arguments) {
  try {
    co_return co_await (inner_.get()->*operation)(arguments);
  } catch (const PeerLost& lost) {
    const std::size_t count = members_.size();
    std::uint32_t rank = lost.rank();
    if (rank < count) {
      rank = static_cast<std::uint32_t>(members_[rank]);
    } else if (rank < UINT32_MAX - count) {
      rank -= static_cast<std::uint32_t>(count);
    }
    throw PeerLost(
        fmt::format("[collectives] rank {} is at fault, {} as the group of the ranks {} counts: {}",
                    rank, lost.rank(), fmt::join(members_, ", "), lost.what()),
        rank);
  }
}

Task<> GroupBackend::all_gather(GatherArguments arguments) {
  return in_run(&CollectiveBackend::all_gather, arguments);
}

Task<GradientNorm> GroupBackend::reduce_scatter_add(ReduceArguments arguments) {
  return in_run(&CollectiveBackend::reduce_scatter_add, arguments);
}

Task<GradientNorm> GroupBackend::all_reduce_add(ReduceArguments arguments) {
  return in_run(&CollectiveBackend::all_reduce_add, arguments);
}

Task<> GroupBackend::exchange(ExchangeArguments arguments) {
  return in_run(&CollectiveBackend::exchange, arguments);
}

Task<> GroupBackend::broadcast(BroadcastArguments arguments) {
  return in_run(&CollectiveBackend::broadcast, arguments);
}

Task<> GroupBackend::all_to_all(AllToAllArguments arguments) {
  return in_run(&CollectiveBackend::all_to_all, arguments);
}

}  // namespace tandem
