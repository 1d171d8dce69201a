#include "runtime/system/topology.hpp"

#include <utility>

#include <fmt/format.h>
#include <hwloc.h>

namespace tandem {

namespace {

constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kDisplayClass = 0x03;  // upper byte: VGA and 3D controllers

int node_of(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, device);
  return near == nullptr || near->nodeset == nullptr ? -1 : hwloc_bitmap_first(near->nodeset);
}

std::vector<int> nodes_of_accelerators() {
  std::vector<int> nodes;
  hwloc_topology_t topology{};
  if (hwloc_topology_init(&topology) != 0) {
    return nodes;
  }
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) == 0) {
    for (hwloc_obj_t device = hwloc_get_next_pcidev(topology, nullptr); device != nullptr;
         device = hwloc_get_next_pcidev(topology, device)) {
      const auto& pci = device->attr->pcidev;
      if (pci.vendor_id == kNvidia && pci.class_id >> 8 == kDisplayClass) {
        nodes.push_back(node_of(topology, device));
      }
    }
  }
  hwloc_topology_destroy(topology);
  return nodes;
}

}  // namespace

CpuTopology CpuTopology::of_machine(bool accelerators) {
  std::vector<machine::Core> cores = machine::cores();
  if (cores.empty()) {  // a system that says nothing of cores
    for (const int cpu : machine::affinity()) {
      cores.push_back({.numa_node = 0, .cpus = {cpu}});
    }
  }
  return {.cores = std::move(cores),
          .accelerator_nodes = accelerators ? nodes_of_accelerators() : std::vector<int>(),
          .cpu_limit = machine::usable_cpus()};
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
