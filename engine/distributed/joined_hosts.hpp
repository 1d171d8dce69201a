// engine/distributed/joined_hosts.hpp — the back end of ranks on several hosts, with the two levels
// that it stands on: this host's shared memory, and a net to the other hosts.
//
// Invariant: collectives end before the net, and the net before the memory in which its frames lie.
// Thread rule: of the loop's thread, but made before the loop runs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "actors/collectives/hosts/host_level.hpp"
#include "actors/collectives/hosts/hosts_backend.hpp"
#include "engine/distributed/environment.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

/// A base, so that it outlives the collectives.
struct HostsLevels {
  std::unique_ptr<HostLevel> local;
  Net net;
};

class JoinedHosts final : private HostsLevels, public HostsBackend {
 public:
  /// `pool` outlives it.
  JoinedHosts(std::unique_ptr<HostLevel> memory, std::unique_ptr<NetBackend> frames, CpuPool& pool,
              Options options)
      : HostsLevels{std::move(memory), Net(std::move(frames))},
        HostsBackend(*local, net, pool, std::move(options)) {}

  std::byte* allocate(std::size_t bytes) override {
    std::byte* const made = HostsBackend::allocate(bytes);
    if (bytes > 0) {
      net.register_memory({made, bytes});
    }
    return made;
  }
};

/// The devices by which the ranks' frames go, as UcxNetOptions has them: the network interface by
/// which the ranks met, and the ports of InfiniBand and RoCE that are active. Empty: all, where the
/// interface is not known.
[[nodiscard]] std::string net_devices(const Environment& environment);

}  // namespace tandem
