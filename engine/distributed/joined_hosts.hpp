// engine/distributed/joined_hosts.hpp — the back end of ranks on several hosts, which owns its two
// levels: this host's shared memory, and a net to the other hosts.
//
// Invariant: collectives end before the net, and the net before the memory in which its frames lie.
// Thread rule: the loop's thread; made before the loop runs.
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

/// Returns the longest frame for these devices, in bytes. With TCP alone: the longest that UCX
/// sends by copying, of which many can be under way; a longer one first waits for its receiver.
/// With other devices: a whole piece.
[[nodiscard]] inline std::size_t frame_bytes_for(const std::string& devices) {
  constexpr std::size_t kCopied = std::size_t{56} << 10;
  const bool is_tcp = !devices.empty() && devices.find(':') == std::string::npos;
  return is_tcp ? kCopied : HostsBackend::Options().piece_bytes;
}

/// Returns the network interface of the rendezvous; empty if it is not known.
[[nodiscard]] std::string meeting_interface(const Environment& environment);

/// Returns the devices for frames, in UcxNetOptions' notation: the network interface of the
/// rendezvous, and the active ports of InfiniBand and RoCE. Empty (all devices) if the interface is
/// not known.
[[nodiscard]] std::string net_devices(const Environment& environment);

}  // namespace tandem
