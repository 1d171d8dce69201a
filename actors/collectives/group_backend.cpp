#include "actors/collectives/group_backend.hpp"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/planted.hpp"

namespace tandem {

PeerLost lost_in_run(const GroupWaits& waits, const PeerLost& lost) {
  const std::string group =
      fmt::format("the group of the ranks {}", fmt::join(waits.members(), ", "));
  if (lost.rank() == kUnknownRank) {
    return {fmt::format("[collectives] {} cannot go on: {}", group, lost.what()), kUnknownRank};
  }
  const std::uint32_t rank =
      planted(Bug::kGroupNumberKept) ? lost.rank() : waits.in_run(lost.rank());
  return {fmt::format("[collectives] rank {} is at fault, {} as {} counts: {}", rank, lost.rank(),
                      group, lost.what()),
          rank};
}

template <class Result, class Arguments>
Task<Result> GroupBackend::in_run(Task<Result> (CollectiveBackend::*operation)(Arguments),
                                  Arguments arguments) {
  const struct End {
    GroupWaits& waits;
    ~End() { waits.say({}); }
  } end{*waits_};
  try {
    co_return co_await (inner_.get()->*operation)(arguments);
  } catch (const PeerLost& lost) {
    throw lost_in_run(*waits_, lost);
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

Task<> GroupBackend::all_to_all(AllToAllArguments arguments) {
  return in_run(&CollectiveBackend::all_to_all, arguments);
}

}  // namespace tandem
