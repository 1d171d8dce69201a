#include "engine/scaling/host_links.hpp"

#include <algorithm>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr double kSumWidth = 4;     // sums are fp32
constexpr double kPaysAbove = 0.5;  // of the hosts' compute that is used

/// Bytes of one reduction of `elements`, of the busiest host.
double reduction_bytes(const HostsWork& work, double hosts, double elements) {
  const double elsewhere = (hosts - 1) / hosts;  // of what a host has, for others
  const auto width = static_cast<double>(work.width);
  if (work.stage == 0) {
    // Slices to their owners and sums to all; or a sum that goes along all hosts, and back.
    return work.ranks_per_host == 1 ? elsewhere * elements * (width + kSumWidth)
                                    : elements * kSumWidth * (hosts > 2 ? 2 : 1);
  }
  if (work.ranks_per_host == 1) {
    return elsewhere * elements * width;
  }
  if (work.order == ReductionOrder::kFast) {
    return elsewhere * elements * kSumWidth;
  }
  // All sums go along the hosts, and a host's own come back to it from the last one.
  return elements * kSumWidth * (hosts > 2 ? 1 + 1 / hosts : 1);
}

}  // namespace

LinkBytes link_bytes(const HostsWork& work, std::int64_t hosts) {
  const std::int64_t ranks = hosts * work.ranks_per_host;
  TANDEM_CHECK_EQ(work.micro_batches % ranks, 0, "ranks divide the micro-batches");
  LinkBytes bytes;
  if (hosts == 1) {
    return bytes;
  }
  const auto micro_steps = static_cast<double>(work.micro_batches / ranks);
  const auto count = static_cast<double>(hosts);
  // Each host gets every other one's shards once; stage 3 gathers for the forward and the backward.
  const double of_block = (count - 1) / count * static_cast<double>(work.width);
  if (work.stage > 0) {
    bytes.gathers = of_block * (2 * micro_steps * static_cast<double>(work.gathered) +
                                static_cast<double>(work.kept));
  }
  bytes.reductions = micro_steps * reduction_bytes(work, count, static_cast<double>(work.reduced));
  return bytes;
}

std::vector<HostsForecast> forecast_hosts(const HostsWork& work, const LinkSpeed& link,
                                          double one_host_s, std::int64_t most) {
  std::vector<HostsForecast> all;
  for (std::int64_t hosts = 1; hosts <= most; ++hosts) {
    const std::int64_t ranks = hosts * work.ranks_per_host;
    if (work.micro_batches % ranks != 0) {
      continue;
    }
    HostsForecast one{.hosts = hosts,
                      .bytes = link_bytes(work, hosts),
                      .compute_s = one_host_s / static_cast<double>(hosts)};
    if (hosts > 1) {
      // A gather takes a message's way, a reduction one to its owner or along the hosts.
      const double hops = work.ranks_per_host == 1 ? 1 : static_cast<double>(hosts);
      const double collectives = static_cast<double>(work.micro_batches / ranks * work.blocks);
      const double gathers = work.stage == 0 ? 0 : work.stage == 3 ? 2 : 1;
      one.network_s =
          one.bytes.total() / link.bytes_per_s + collectives * (gathers + hops) * link.latency_s;
    }
    one.hidden_s = std::max(one.compute_s, one.network_s);
    one.exposed_s = one.compute_s + one.network_s;
    all.push_back(one);
  }
  return all;
}

std::int64_t hosts_that_no_longer_pay(const std::vector<HostsForecast>& forecasts) {
  const auto found = std::ranges::find_if(
      forecasts, [](const HostsForecast& one) { return one.efficiency() < kPaysAbove; });
  return found == forecasts.end() ? 0 : found->hosts;
}

}  // namespace tandem
