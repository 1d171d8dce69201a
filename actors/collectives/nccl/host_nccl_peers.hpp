// actors/collectives/nccl/host_nccl_peers.hpp — what the ranks of one host tell each other beside
// NCCL, and what each of them has heard of ranks on other hosts.
//
// In shared memory (ShmNcclPeers), and in tests the simulator's. Ranks have their numbers among
// all, but for HostWaits' own. Where there are several hosts, rank 0's decisions are handed on by
// each host's first rank: it calls decide().
// Thread rule: the loop's thread.
#pragma once

#include <cstdint>
#include <optional>

#include "actors/collectives/hosts/host_waits.hpp"
#include "actors/collectives/nccl/nccl_peers.hpp"

namespace tandem {

class HostNcclPeers : public NcclPeers, public HostWaits {
 public:
  /// Turns that `rank` has begun; of another host's, those that this host knows of.
  [[nodiscard]] virtual std::uint64_t begun(std::uint32_t rank) const noexcept = 0;
  /// The rank, which has this local rank on another host, has begun that number.
  virtual void has_heard(std::uint32_t rank, std::uint64_t begun) noexcept = 0;

  /// The same, of this host's ranks.
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
