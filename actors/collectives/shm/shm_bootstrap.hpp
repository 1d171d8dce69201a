// actors/collectives/shm/shm_bootstrap.hpp — how the processes of one host find each other: a
// socket between each two, over which each gives the other its arena.
//
// Unix sockets in the abstract namespace: nothing in a file system, nothing that a network reaches.
// Every user of the host sees such names, and can take those it guesses: each is made from the
// job's secret. Both sides look first whether the other belongs to the same user, and hand over
// memory to no other; the hello of each proves that it knows the secret. Afterwards a socket
// carries single bytes (look up!), and its end says that the peer is gone. Blocks; of one thread.
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
  std::uint32_t first_rank = 0;  // the name of rank 0
  std::string job;  // the text of a Secret, the same on all ranks and of this job alone
  std::chrono::steady_clock::duration timeout = std::chrono::seconds(300);
};

/// The name under which `rank` of the job is called, without the zero before it.
[[nodiscard]] std::string shm_name(const std::string& job, std::uint32_t rank);

/// A peer for each rank (at `rank` itself: none). Throws PeerLost naming the rank that did not
/// come, Error(kPeer) for one that is not what it says.
[[nodiscard]] std::vector<ShmPeer> bootstrap_shm(const ShmBootstrapOptions& options,
                                                 ShmArena& arena);

}  // namespace tandem
