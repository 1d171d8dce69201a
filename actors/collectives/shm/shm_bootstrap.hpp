// actors/collectives/shm/shm_bootstrap.hpp — connects the processes of one host: a socket between
// each two, through which they pass their arenas.
//
// Uses Unix sockets in the abstract namespace, which have no files and are not reachable from the
// network. Every user of the host sees such names and could take a name in advance by guessing it,
// so each name is derived from the job's secret. Both sides first check that the other belongs to
// the same user, and pass memory to no other process; each hello proves that its sender knows the
// secret. Afterwards a socket carries single bytes, which wake the peer. If it closes, the peer is
// gone. Blocks; one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/collectives/shm/shm_arena.hpp"
#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

struct ShmPeer {
  OwnedDescriptor socket;
  std::shared_ptr<ShmMapping> memory;
};

struct ShmBootstrapOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t first_rank = 0;  // number of rank 0 among all ranks
  std::string job;  // the text of a Secret, the same on all ranks and used by this job alone
  std::chrono::steady_clock::duration timeout = std::chrono::seconds(300);
};

/// Returns the name of the socket of `rank`, without the zero byte that precedes it.
[[nodiscard]] std::string shm_name(const std::string& job, std::uint32_t rank);

/// Returns a peer for each rank; the entry of `rank` itself is empty. Throws PeerLost, which names
/// the missing rank, or Error(kPeer) for a peer that fails a check.
[[nodiscard]] std::vector<ShmPeer> bootstrap_shm(const ShmBootstrapOptions& options,
                                                 ShmArena& arena);

}  // namespace tandem
