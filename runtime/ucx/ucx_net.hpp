// runtime/ucx/ucx_net.hpp — a Net between processes and hosts by UCX: over InfiniBand if there is
// one, else over TCP.
//
// It has one worker of UCX, on the loop's thread, which the loop polls while it is awake and arms
// before it sleeps; the worker's descriptor is in the reactor. A frame is a tagged message; the tag
// carries the run's key, the sender and the channel, and a message with another key is thrown away.
// Small frames are copied; from 60 KiB on UCX moves a frame from its sender's buffer into its
// receiver's, so that its send ends when it was received.
// Credits: a channel takes `window_frames` frames ahead of the receiver.
// Failures: an endpoint's error is the loss of its rank. A rank that leaves says so and is answered
// first, so that the frames that it sent arrive; receives that find no frame then fail, naming that
// rank.
// Waiting: while operations wait and a CPU is left for it, the loop spins for a bounded time before
// it sleeps (TANDEM_SPIN=never: it does not).
// Limits: 4,096 ranks, channels below 65,536. Nothing is encrypted, and the key keeps out other
// runs, not attackers. A host that loses power is noticed when UCX's keep-alive misses it (about 20
// s). A rank that is stopped is not lost.
// On a machine without UCX, no_ucx.cpp stands behind this header and says so.
// Thread rule: the loop's thread, which may be another one at each run of the loop.
// Cancel rule: as net.hpp has it.
//
//   Net net(connect_ucx_net(loop, {.rank = 1, .world = 2, .run_key = key},
//                           [&](const std::string& mine) { return store.all("ucx", mine); }));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

struct UcxSupport {
  bool usable = false;
  std::string what;  // "UCX 1.13.1", or why it is not usable
};
/// Tells whether UCX is usable. The first call loads the library and sets variables for it: no
/// other thread may read the environment meanwhile.
[[nodiscard]] const UcxSupport& ucx_support();

struct UcxNetOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t run_key = 0;         // drawn at random for the run; the same on all ranks
  std::uint32_t window_frames = 32;  // even; the same on all ranks
  std::string devices;               // "eth0,mlx5_0:1": as UCX_NET_DEVICES; empty: all
  std::vector<std::string> hosts;    // the host of each rank, for messages; empty: not known
  Duration connect_timeout = std::chrono::seconds(30);
  Duration linger = std::chrono::seconds(2);  // at most, for farewells
};

/// Gives this rank's address to all and returns those of all ranks, in rank order; may block.
using ExchangeAddresses = std::function<std::vector<std::string>(const std::string& mine)>;

/// Connects the ranks; blocks until every rank has received from every other one. Throws PeerLost,
/// naming the ranks whose frames did not arrive in time. UCX's settings in the environment take
/// precedence over those set here.
[[nodiscard]] std::unique_ptr<NetBackend> connect_ucx_net(EventLoop& loop,
                                                          const UcxNetOptions& options,
                                                          const ExchangeAddresses& exchange);

}  // namespace tandem
