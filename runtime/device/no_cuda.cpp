#include "runtime/device/gpu_probe.hpp"

namespace tandem {

std::vector<GpuInfo> gpus() { return {}; }
bool built_with_cuda() noexcept { return false; }

}  // namespace tandem
