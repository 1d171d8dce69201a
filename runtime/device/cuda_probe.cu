// Compiled by nvcc: C++17, no header of the runtime but the probe's.
#include <cstdio>

#include <cuda_runtime_api.h>

#include "runtime/device/cuda_environment.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/device/nvml.hpp"

namespace tandem {
namespace {

std::string text_of(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : uuid.bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string address_of(const cudaDeviceProp& gpu) {
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", static_cast<unsigned>(gpu.pciDomainID),
                static_cast<unsigned>(gpu.pciBusID), static_cast<unsigned>(gpu.pciDeviceID));
  return text;
}

}  // namespace

std::vector<GpuInfo> gpus() {
  prepare_cuda_environment();
  std::vector<GpuInfo> found;
  const Nvml nvml;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver or no device: nothing to see
    return found;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    GpuInfo info{properties.name,       properties.totalGlobalMem, 0,
                 properties.major,      properties.minor,          text_of(properties.uuid),
                 address_of(properties)};
    info.free_bytes = nvml.free_bytes(info.uuid);
    if (info.free_bytes == 0 && count == 1) {  // this process computes on it, if on any
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      info.free_bytes = cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? free_bytes : 0;
      cudaGetLastError();
    }
    found.push_back(std::move(info));
  }
  return found;
}

bool built_with_cuda() noexcept { return true; }

}  // namespace tandem
