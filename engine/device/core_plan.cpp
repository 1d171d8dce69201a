#include "engine/device/core_plan.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include <fmt/format.h>
#include <sched.h>

#include "runtime/device/gpu_probe.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

using machine::Core;

/// Near the rank's accelerator first, then by node, each in hwloc's order.
std::vector<Core> ordered(const CpuTopology& topology, int near) {
  std::vector<Core> cores = topology.cores;
  std::ranges::stable_sort(cores, {}, [near](const Core& core) {
    return std::pair(core.numa_node == near ? 0 : 1, core.numa_node);
  });
  return cores;
}

/// The part of `count` things that share number `index` of `shares` gets: begin and end.
std::pair<std::size_t, std::size_t> share_of(std::size_t count, std::size_t shares,
                                             std::size_t index) {
  return {count * index / shares, count * (index + 1) / shares};
}

/// Ranks whose accelerators are near one node divide that node's cores; a rank without one, or on a
/// node without cores for it, takes its part of all.
std::vector<Core> cores_of_rank(const CpuTopology& topology, const CoreQuestion& q) {
  const auto rank = static_cast<std::size_t>(q.rank);
  const auto& nodes = topology.accelerator_nodes;
  const auto near_of = [&](std::size_t other) {
    return q.accelerator && !nodes.empty() ? nodes[other % nodes.size()] : -1;
  };
  const int near = near_of(rank);
  std::vector<Core> candidates;
  std::size_t sharers = 0;
  std::size_t before = 0;
  for (std::size_t other = 0; other < static_cast<std::size_t>(q.ranks); ++other) {
    if (near_of(other) == near) {
      ++sharers;
      before += other < rank ? 1 : 0;
    }
  }
  for (const Core& core : ordered(topology, near)) {
    if (core.numa_node == near) {
      candidates.push_back(core);
    }
  }
  if (near < 0 || candidates.size() < sharers) {
    candidates = ordered(topology, -1);
    sharers = static_cast<std::size_t>(q.ranks);
    before = rank;
  }
  const auto [begin, end] = share_of(candidates.size(), sharers, before);
  if (begin == end) {  // more ranks than cores: they run on each other's
    return {candidates[before % candidates.size()]};
  }
  return {candidates.begin() + static_cast<std::ptrdiff_t>(begin),
          candidates.begin() + static_cast<std::ptrdiff_t>(end)};
}

/// One CPU of each core; the second hardware thread where it has one and `second` asks for it.
std::vector<int> cpus_of(std::span<const Core> cores, bool second) {
  std::vector<int> cpus;
  for (const Core& core : cores) {
    cpus.push_back(second && core.cpus.size() > 1 ? core.cpus[1] : core.cpus.front());
  }
  return cpus;
}

std::vector<int> all_cpus_of(std::span<const Core> cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) {
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  std::ranges::sort(cpus);
  return cpus;
}

int share_in_threads(double share, int cores) {
  return std::max(1, static_cast<int>(std::lround(share * cores)));
}

/// Compute on the CPU: every core computes, and the optimizer works beside it on the last ones.
void divide_shared(CorePlan& plan, std::span<const Core> cores, int limit, const CoreQuestion& q) {
  plan.compute_threads = q.compute_threads > 0 ? q.compute_threads : limit;
  plan.optimizer_threads =
      q.optimizer_threads > 0 ? q.optimizer_threads : share_in_threads(q.optimizer_share, limit);
  const std::size_t count =
      std::min(cores.size(), static_cast<std::size_t>(plan.optimizer_threads));
  plan.compute = cpus_of(cores, false);
  plan.optimizer = cpus_of(cores.last(count), true);
  plan.service = all_cpus_of(cores);
  plan.optimizer_shares_cores = plan.compute_threads + plan.optimizer_threads > limit;
  plan.copy_threads = std::min(2, plan.compute_threads);
}

/// Compute on an accelerator: the lane has a core to itself, loop and copies another where there
/// are four, the optimizer its share of the rest.
void divide_apart(CorePlan& plan, std::span<const Core> cores, int limit, const CoreQuestion& q) {
  const std::size_t reserved = std::min<std::size_t>(cores.size() - 1, cores.size() >= 4 ? 2 : 1);
  const std::span<const Core> rest = cores.subspan(reserved);
  const int most =
      std::max(1, std::min(limit - static_cast<int>(reserved), static_cast<int>(rest.size())));
  plan.compute_threads = q.compute_threads > 0 ? q.compute_threads : 1;
  plan.optimizer_threads = q.optimizer_threads > 0
                               ? q.optimizer_threads
                               : std::min(most, share_in_threads(q.optimizer_share, limit));
  const std::size_t count = std::min(rest.size(), static_cast<std::size_t>(plan.optimizer_threads));
  plan.compute = cpus_of(cores.first(1), false);
  plan.optimizer = cpus_of(rest.last(count), false);
  // Loop and links: the second core and whatever the optimizer left, else beside the lane.
  plan.service =
      all_cpus_of(cores.first(cores.size() - count).subspan(reserved > 0 ? reserved - 1 : 0));
  plan.optimizer_shares_cores = cores.size() == 1;
  plan.copy_threads = std::clamp(static_cast<int>(plan.service.size()) - 1, 1, 2);
}

}  // namespace

CpuTopology topology_of_machine(bool accelerator) {
  std::vector<std::string> addresses;
  if (accelerator) {
    for (const GpuInfo& gpu : gpus()) {
      addresses.push_back(gpu.pci);
    }
  }
  return CpuTopology::of_machine(addresses);
}

CorePlan CorePlan::of(const CpuTopology& topology, const CoreQuestion& question) {
  TANDEM_CHECK(!topology.cores.empty() && question.ranks >= 1 && question.rank < question.ranks,
               "a rank runs somewhere");
  const std::vector<Core> cores = cores_of_rank(topology, question);
  const int limit =
      std::max(1, std::min(static_cast<int>(cores.size()), topology.cpu_limit / question.ranks));
  CorePlan plan{.rank = all_cpus_of(cores), .split_among = question.ranks};
  std::set<int> nodes;
  for (const Core& core : cores) {
    nodes.insert(core.numa_node);
  }
  plan.node = nodes.size() == 1 ? *nodes.begin() : -1;
  (question.accelerator ? divide_apart : divide_shared)(plan, cores, limit, question);
  if (plan.service.empty()) {
    plan.service = plan.rank;
  }
  return plan;
}

bool bind_thread(const std::vector<int>& cpus) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) {
      CPU_SET(static_cast<std::size_t>(cpu), &set);
    }
  }
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

std::string CorePlan::text() const {
  return fmt::format(
      "{} CPU{} {}{}: compute {} ({} thread{}), optimizer {} ({}){}, loop and copies {} ({}){}",
      rank.size(), rank.size() == 1 ? "" : "s", ranges_text(rank),
      node >= 0 ? fmt::format(" (node {})", node) : "", ranges_text(compute), compute_threads,
      compute_threads == 1 ? "" : "s", ranges_text(optimizer), optimizer_threads,
      optimizer_shares_cores ? " beside it" : "", ranges_text(service), copy_threads,
      split_among > 1 ? fmt::format("; CPUs split among {} ranks", split_among) : "");
}

}  // namespace tandem
