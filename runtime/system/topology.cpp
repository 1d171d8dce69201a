#include "runtime/system/topology.hpp"

#include <fstream>
#include <utility>

#include <fmt/format.h>

namespace tandem {

CpuTopology CpuTopology::of_machine(std::span<const std::string> accelerators,
                                    const std::string& pci_devices) {
  std::vector<machine::Core> cores = machine::cores();
  if (cores.empty()) {  // a system that says nothing of cores
    for (const int cpu : machine::affinity()) {
      cores.push_back({.numa_node = 0, .cpus = {cpu}});
    }
  }
  CpuTopology topology{.cores = std::move(cores), .cpu_limit = machine::usable_cpus()};
  for (const std::string& address : accelerators) {
    int node = -1;
    std::ifstream(fmt::format("{}/{}/numa_node", pci_devices, address)) >> node;
    topology.accelerator_nodes.push_back(node);
  }
  return topology;
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text +=
        last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace tandem
