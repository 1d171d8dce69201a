// runtime/device/gpu_probe.hpp — lists the GPUs of this machine; none without a driver, a device,
// or CUDA in the build.
//
// NVML, the driver's library for management, knows the memory that is free on every GPU.
// Thread rule: any thread; the first call may take a second (it wakes the driver).
// Errors: none, the list is empty then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

struct GpuInfo {
  std::string name;
  std::uint64_t memory_bytes;
  std::uint64_t free_bytes;  // at the time of the call, by NVML; 0 if unknown
  int compute_major;
  int compute_minor;
  std::string uuid;  // the same in every process that sees this GPU: 32 hexadecimal digits
  std::string pci;   // its address on the bus, "0000:3b:00.0"
};

/// Returns the GPUs that this process may use, in CUDA's order. Opens no context on any of them,
/// which would take half a GiB of each; only where there is a single one may it be asked itself.
[[nodiscard]] std::vector<GpuInfo> gpus();
/// True if this build has its CUDA parts.
[[nodiscard]] bool built_with_cuda() noexcept;

}  // namespace tandem
