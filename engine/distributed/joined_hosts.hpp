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

/// The longest frame for these devices. TCP alone: what UCX copies, many of which are on their way
/// at a time, where a longer one that it moves waits for its receiver first. Others: a whole piece.
[[nodiscard]] inline std::size_t frame_bytes_for(const std::string& devices) {
  constexpr std::size_t kCopied = std::size_t{56} << 10;
  const bool is_tcp = !devices.empty() && devices.find(':') == std::string::npos;
  return is_tcp ? kCopied : HostsBackend::Options().piece_bytes;
}

/// The network interface by which the ranks met; empty: not known.
[[nodiscard]] std::string meeting_interface(const Environment& environment);

/// The devices by which the ranks' frames go, as UcxNetOptions has them: the network interface by
/// which the ranks met, and the ports of InfiniBand and RoCE that are active. Empty: all, where the
/// interface is not known.
[[nodiscard]] std::string net_devices(const Environment& environment);

}  // namespace tandem
