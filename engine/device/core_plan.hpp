// engine/device/core_plan.hpp — which cores compute, which run the optimizer, and how many threads
// a rank has for each.
//
// A pure function of the machine's topology and the user's options. A rank uses the CPUs of its
// affinity mask (launchers bind); ranks that share a mask divide it, by whole cores, near their
// accelerator's NUMA node first. A second hardware thread of a core does not speed up a matmul or a
// sum that waits for memory, so threads are counted by cores; with --pin_cores the optimizer's
// threads use the second ones and do not displace the compute lane's. OMP_NUM_THREADS (torchrun
// sets 1) is ignored: the lane's team and the pools have counts of their own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/system/topology.hpp"

namespace tandem {

/// Returns this machine's processors; if `accelerator`, with the nodes of the GPUs that this
/// process may use, in CUDA's order.
[[nodiscard]] CpuTopology topology_of_machine(bool accelerator);

struct CoreQuestion {
  int ranks = 1;                 // that share the topology's cores
  int rank = 0;                  // of these
  bool accelerator = false;      // the compute lane only issues work
  double optimizer_share = 0.8;  // of the rank's cores: cpuadam_cores_perc
  int compute_threads = 0;       // 0: chosen
  int optimizer_threads = 0;     // 0: chosen
};

struct CorePlan {
  std::vector<int> rank;       // the CPUs that are this rank's
  std::vector<int> compute;    // of the compute lane and its team
  std::vector<int> optimizer;  // one for each of its threads, in order
  std::vector<int> service;    // of the loop and the link pool
  int node = -1;               // of the rank's cores; -1: several
  int compute_threads = 1;
  int optimizer_threads = 1;
  int copy_threads = 1;
  bool optimizer_shares_cores = false;  // with the compute lane
  int split_among = 1;                  // ranks that divide the usable CPUs

  static CorePlan of(const CpuTopology& topology, const CoreQuestion& question);

  /// One line: "8 CPUs 0-7 (node 0): compute 0-3 (4 threads), optimizer 4-7 (3), loop and copies
  /// 0-7 (2)"; and among how many ranks the CPUs were split.
  [[nodiscard]] std::string text() const;
};

/// Binds the calling thread to these CPUs; threads that it makes later inherit them. Returns false
/// if the system refuses.
bool bind_thread(const std::vector<int>& cpus) noexcept;

}  // namespace tandem
