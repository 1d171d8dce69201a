#include "actors/collectives/nccl/joined_nccl_peers.hpp"

#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"

namespace tandem {

std::shared_ptr<NcclPeers> JoinedNcclPeers::make(EventLoop& loop,
                                                 std::unique_ptr<HostNcclPeers> host,
                                                 std::unique_ptr<NetBackend> frames,
                                                 Options options) {
  auto made = std::make_unique<JoinedNcclPeers>(loop, std::move(host), std::move(frames),
                                                std::move(options));
  return {made.release(), [&loop](JoinedNcclPeers* peers) {
            loop.run(&JoinedNcclPeers::leave, peers);
            delete peers;
          }};
}

JoinedNcclPeers::JoinedNcclPeers(EventLoop& loop, std::unique_ptr<HostNcclPeers> host,
                                 std::unique_ptr<NetBackend> frames, Options options)
    : host_(std::move(host)),
      net_(std::move(frames)),
      frames_(loop, *host_, net_, options.channel, options.outside_ranks),
      heartbeats_(
          *host_, net_,
          [&] {
            options.waits.other_waits = [this](Duration at_least) { return look(at_least); };
            return std::move(options.waits);
          }(),
          [](std::uint32_t, const std::string&) {}) {
  TANDEM_CHECK(
      net_.world() % host_->world() == 0 && net_.rank() == host_->first_rank() + host_->rank(),
      "the ranks of a host are neighbours, and all hosts have as many");
  heartbeats_.start(loop);
}

// Called at each tick: sends this rank's begun turns to the other hosts, and checks for failures.
Awaited JoinedNcclPeers::look(Duration at_least) {
  frames_.say_begun();
  (void)loss();
  return waits_ ? waits_(at_least) : Awaited();
}

void JoinedNcclPeers::decide(std::uint64_t turn, const NcclLaunch& launch) noexcept {
  host_->decide(turn, launch);
  frames_.tell_decisions();
}

void JoinedNcclPeers::has_begun(std::uint64_t turn) noexcept {
  host_->has_begun(turn);
  frames_.has_begun(turn);
}

std::optional<std::uint32_t> JoinedNcclPeers::behind(std::uint64_t turn) noexcept {
  for (std::uint32_t rank = 0; rank < net_.world(); ++rank) {
    if (host_->begun(rank) < turn) {
      return rank;
    }
  }
  return std::nullopt;
}

// Checks this host's ranks first: about other hosts' ranks it knows only what was received, and
// nothing new from a silent one. A silent rank may be at fault even if it has begun all turns: it
// was stopped before NCCL had the launch.
std::optional<std::uint32_t> JoinedNcclPeers::waits_for(std::uint64_t turn) noexcept {
  const std::uint32_t first = host_->first_rank();
  const std::uint32_t end = first + host_->world();
  const auto silent = [this](std::uint32_t from, std::uint32_t to) -> std::optional<std::uint32_t> {
    for (std::uint32_t rank = from; rank < to; ++rank) {
      if (rank != net_.rank() && heartbeats_.is_silent(rank)) {
        return rank;
      }
    }
    return std::nullopt;
  };
  if (const auto here = host_->behind(turn)) {
    return here;
  }
  if (const auto here = silent(first, end)) {
    return here;
  }
  const auto elsewhere = behind(turn);
  return elsewhere ? elsewhere : silent(0, net_.world());
}

std::optional<NcclLoss> JoinedNcclPeers::loss() noexcept {
  if (const std::optional<NcclLoss> of_host = host_->loss()) {
    frames_.announce_failure(of_host->failed_rank, of_host->cause);
    return of_host;
  }
  return frames_.loss();
}

std::uint32_t JoinedNcclPeers::decider() const noexcept {
  return host_->rank() == 0 ? 0 : host_->first_rank();
}

NcclLoss JoinedNcclPeers::failed_behind(std::uint32_t awaited) const {
  const NetWaits::Failed found = heartbeats_.failed_behind(awaited);
  return {found.rank,
          fmt::format("{}; {}",
                      found.rank == awaited || found.rank == net_.rank()
                          ? ""
                          : fmt::format("; it waits for rank {} in the end", found.rank),
                      found.what)};
}

}  // namespace tandem
