// runtime/system/topology.hpp — the processors of this machine as plans of threads see them: cores
// with their hardware threads, NUMA nodes, and near which node each accelerator is. Any thread;
// read anew at each call.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/system/machine.hpp"

namespace tandem {

struct CpuTopology {
  // what the affinity mask allows, in hwloc's order; a core may have lost some threads
  std::vector<machine::Core> cores;
  std::vector<int> accelerator_nodes;  // NUMA node of each accelerator; -1: unknown
  int cpu_limit = 1;  // CPUs' worth of time: the mask's size, cut by the cgroup's quota

  /// `accelerators`: their addresses on the PCI bus, "0000:3b:00.0"; `pci_devices`: the folder in
  /// which the kernel describes each.
  [[nodiscard]] static CpuTopology of_machine(
      std::span<const std::string> accelerators = {},
      const std::string& pci_devices = "/sys/bus/pci/devices");
};

/// "0-3,8" for 0 1 2 3 8.
[[nodiscard]] std::string ranges_text(const std::vector<int>& numbers);

}  // namespace tandem
