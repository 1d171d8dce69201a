// actors/collectives/nccl/host_nccl_peers.hpp — the exchange among the ranks of one host outside of
// NCCL, and what they know about ranks on other hosts.
//
// ShmNcclPeers implements it in shared memory, and the simulator in tests. Ranks have their numbers
// among all ranks, except in rank() and world(). With several hosts, each host's first rank passes
// on rank 0's decisions: it calls decide().
// Thread rule: the loop's thread.
#pragma once

#include <cstdint>
#include <optional>

#include "actors/collectives/hosts/host_waits.hpp"
#include "actors/collectives/nccl/nccl_peers.hpp"

namespace tandem {

class HostNcclPeers : public NcclPeers, public HostWaits {
 public:
  /// Returns the number of turns that `rank` has begun. For a rank of another host, it is the
  /// latest number that this host knows.
  [[nodiscard]] virtual std::uint64_t begun(std::uint32_t rank) const noexcept = 0;
  /// Records that the rank with this local rank on another host has begun that number of turns.
  virtual void has_received(std::uint32_t rank, std::uint64_t begun) noexcept = 0;

  /// Returns a rank of this host that has not begun all turns before `turn`; nullopt if all have.
  [[nodiscard]] std::optional<std::uint32_t> behind(std::uint64_t turn) noexcept override {
    for (std::uint32_t local = 0; local < world(); ++local) {
      if (begun(first_rank() + local) < turn) {
        return first_rank() + local;
      }
    }
    return std::nullopt;
  }
  /// The number of the host's first rank.
  [[nodiscard]] virtual std::uint32_t first_rank() const noexcept = 0;
};

}  // namespace tandem
