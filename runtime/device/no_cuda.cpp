#include "runtime/device/cuda_api.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

std::vector<GpuInfo> gpus() { return {}; }
bool built_with_cuda() noexcept { return false; }

const CudaApi& CudaApi::load() {
  throw failure(
      ExitCode::kRefused, "device",
      "this build has no CUDA parts: nvcc was not there; install a CUDA toolkit and build "
      "again, or use --device cpu");
}

}  // namespace tandem
