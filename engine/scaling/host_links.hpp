// engine/scaling/host_links.hpp — the bytes that a step sends between hosts, and the step's time
// that follows: for `tandem plan --hosts`.
//
// Counts the payloads of the collectives over hosts (actors/collectives/hosts/), for the busiest
// host's link, in one direction, because a link carries both at once. The global batch stays the
// same: its micro-batches are divided among the ranks. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/distributed/reduction.hpp"

namespace tandem {

/// The properties of a model and a run on which links depend.
struct HostsWork {
  std::int64_t ranks_per_host = 1;
  int stage = 3;
  std::int64_t micro_batches = 1;  // of a step, of all ranks
  std::int64_t gathered = 0;       // elements of blocks that are gathered for every visit
  std::int64_t kept = 0;           // that stay gathered: once for a step
  std::int64_t reduced = 0;        // that have gradients
  std::int64_t width = 4;          // bytes of a weight and of a gradient's element
  std::int64_t blocks = 1;         // that gathered, kept and reduced lie in
  ReductionOrder order = ReductionOrder::kExact;
};

/// Bytes of a step in one direction of a host's link.
struct LinkBytes {
  double gathers = 0;
  double reductions = 0;
  [[nodiscard]] double total() const noexcept { return gathers + reductions; }
};
/// `hosts` times the ranks of a host divide the micro-batches.
[[nodiscard]] LinkBytes link_bytes(const HostsWork& work, std::int64_t hosts);

struct LinkSpeed {
  double bytes_per_s = 0;  // in one direction
  double latency_s = 0;    // of a message
};

struct HostsForecast {
  std::int64_t hosts = 1;
  LinkBytes bytes;
  double network_s = 0;  // for which the link is busy, and its messages' latencies
  double hidden_s = 0;   // the step, if compute hides the network
  double exposed_s = 0;  // if it hides nothing of it
  /// The efficiency of the hosts' compute, with everything hidden.
  [[nodiscard]] double efficiency() const noexcept { return compute_s / hidden_s; }
  double compute_s = 0;
};
/// Returns a forecast for each number of hosts up to `most` that divides the work. `one_host_s`: a
/// step on one host.
[[nodiscard]] std::vector<HostsForecast> forecast_hosts(const HostsWork& work,
                                                        const LinkSpeed& link, double one_host_s,
                                                        std::int64_t most);

/// Returns the first number of hosts with which less than half of their compute is used; 0 if there
/// is none.
[[nodiscard]] std::int64_t hosts_that_no_longer_pay(const std::vector<HostsForecast>& forecasts);

}  // namespace tandem
