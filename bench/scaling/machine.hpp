// bench/scaling/machine.hpp — machines of a cluster, by the figures that their makers publish.
//
// Rates are of one direction, and peaks: what a program reaches of them is the bench's to assume.
// docs/scaling.md names the page of each figure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem::bench {

/// A host of eight accelerators, each with a link to the others and a network card of its own.
struct Machine {
  std::string_view name;
  double compute_flops_per_s;            // of an accelerator: bf16, dense
  double memory_bytes_per_s;             // of an accelerator's memory
  double host_link_bytes_per_s;          // from an accelerator to those of its host
  double network_bytes_per_s;            // from an accelerator's card to other hosts
  double bus_bytes_per_s;                // between an accelerator and its host's memory
  std::array<double, 3> ll_bytes_per_s;  // most of NCCL's LL: in one host, over two, over more
  double host_memory_bytes_per_s;        // of a whole host
  static constexpr std::uint32_t kRanks = 8;
};

inline constexpr std::array kMachines = {
    Machine{.name = "dgx-h100",  // NVLink 4, NDR, PCIe 5 x16, 2 x 8 channels of DDR5-4800
            .compute_flops_per_s = 989.4e12,
            .memory_bytes_per_s = 3.35e12,
            .host_link_bytes_per_s = 450e9,
            .network_bytes_per_s = 50e9,
            .bus_bytes_per_s = 63e9,
            .ll_bytes_per_s = {141e9, 45e9, 35e9},
            .host_memory_bytes_per_s = 614.4e9},
    Machine{.name = "dgx-a100",  // NVLink 3, HDR, PCIe 4 x16, 2 x 8 channels of DDR4-3200
            .compute_flops_per_s = 312e12,
            .memory_bytes_per_s = 2.039e12,
            .host_link_bytes_per_s = 300e9,
            .network_bytes_per_s = 25e9,
            .bus_bytes_per_s = 31.5e9,
            .ll_bytes_per_s = {87.7e9, 22.5e9, 19e9},
            .host_memory_bytes_per_s = 409.6e9},
};

}  // namespace tandem::bench
