// tests/support/nccl_hosts.hpp — how ranks that are threads meet as ranks of several hosts: each
// host's over shared memory of their own, and all over UCX on the loopback.
//
//   NcclHostsMeeting meeting(4, 2);   // in each thread: auto peers = meeting.join(loop, rank);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "actors/collectives/nccl/joined_nccl_peers.hpp"
#include "actors/collectives/nccl/shm_nccl_peers.hpp"
#include "tests/support/net_ranks.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem::test {

class NcclHostsMeeting {
 public:
  NcclHostsMeeting(std::uint32_t world, std::uint32_t per_host)
      : world_(world), per_host_(per_host), addresses_(world), job_(random_job()) {}

  /// Blocks until all ranks are there. Any thread.
  [[nodiscard]] std::shared_ptr<NcclPeers> join(EventLoop& loop, std::uint32_t rank) {
    const std::uint32_t first = rank / per_host_ * per_host_;
    auto memory = ShmNcclPeers::connect(loop, {.rank = rank - first,
                                               .world = per_host_,
                                               .job = fmt::format("{}-{}", job_, first),
                                               .first_rank = first,
                                               .all_ranks = world_});
    JoinedNcclPeers::Options options;
    for (std::uint32_t host = 0; host < world_ / per_host_; ++host) {
      options.waits.host_names.push_back(fmt::format("host-{}", host));
    }
    return JoinedNcclPeers::make(
        loop, std::move(memory),
        connect_on_loopback(loop, loopback_options(rank, world_), addresses_), options);
  }

 private:
  std::uint32_t world_;
  std::uint32_t per_host_;
  AddressBook addresses_;
  std::string job_;
};

}  // namespace tandem::test
