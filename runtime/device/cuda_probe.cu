// Compiled by nvcc: C++17, no header of the runtime but the probe's own.
#include <cuda_runtime_api.h>

#include "runtime/device/gpu_probe.hpp"

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

}  // namespace

std::vector<GpuInfo> gpus() {
  std::vector<GpuInfo> found;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver or no device: nothing to see
    return found;
  }
  int current = 0;
  cudaGetDevice(&current);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    GpuInfo info{properties.name,  properties.totalGlobalMem, 0,
                 properties.major, properties.minor,          text_of(properties.uuid)};
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    if (cudaSetDevice(device) == cudaSuccess &&
        cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
      info.free_bytes = free_bytes;
    }
    cudaGetLastError();
    found.push_back(std::move(info));
  }
  cudaSetDevice(current);
  cudaGetLastError();
  return found;
}

bool built_with_cuda() noexcept { return true; }

}  // namespace tandem
