#include "engine/tensors/device_choice.hpp"

#include <fmt/format.h>

#include "engine/device/gpu.hpp"
#include "engine/tensors/gpu_bandwidths.hpp"
#include "engine/tensors/torch_cuda.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/system/topology.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

DeviceFacts DeviceFacts::of_machine() {
  DeviceFacts facts{.built_with_cuda = tandem::built_with_cuda(), .gpus = tandem::gpus().size()};
  if (facts.gpus > 0) {
    facts.torch_lacks_cuda = why_torch_has_no_cuda();
  }
  return facts;
}

std::string why_no_cuda(const DeviceFacts& facts) {
  if (!facts.built_with_cuda) {
    return "this build has no CUDA parts, for want of nvcc";
  }
  if (facts.gpus == 0) {
    return "no GPU with a driver was found";
  }
  return facts.torch_lacks_cuda;
}

DeviceKind choose_device(std::string_view asked, const DeviceFacts& facts) {
  if (asked == "sim" || asked == "cpu") {
    return asked == "sim" ? DeviceKind::kSim : DeviceKind::kCpu;
  }
  const std::string why = why_no_cuda(facts);
  if (asked == "cuda" && !why.empty()) {
    throw user_error("device",
                     "device is cuda, and {}; use cpu, or sim for a simulated "
                     "accelerator (./tandem doctor says more)",
                     why);
  }
  return why.empty() ? DeviceKind::kCuda : DeviceKind::kCpu;
}

DeviceKind choose_device(std::string_view asked) {
  const bool depends = asked == "cuda" || asked == "auto";
  return choose_device(asked, depends ? DeviceFacts::of_machine() : DeviceFacts());
}

std::shared_ptr<Gpu> open_gpu(int local_rank) {
  const std::vector<GpuInfo> all = gpus();
  (void)choose_device("cuda");
  const int index = local_rank % static_cast<int>(all.size());
  const GpuInfo& info = all[static_cast<std::size_t>(index)];
  return std::make_shared<Gpu>(
      Gpu{.api = &CudaApi::load(),
          .index = index,
          .name = fmt::format("gpu {} ({})", index, info.name),
          .uuid = info.uuid,
          .node = CpuTopology::of_machine({&info.pci, 1}).accelerator_nodes.front(),
          .compute = torch_cuda_device(index),
          .updates = &UpdateKernels::load(),
          .sums = &SumKernels::load(),
          .measure = [](const Gpu& gpu, const UpdateKernel& kernel) {
            return gpu_spec(gpu, kernel, BandwidthCache::of_user());
          }});
}

EngineOptions with_gpu(EngineOptions options) {
  if (options.device == DeviceKind::kCuda && !options.open_gpu) {
    options.open_gpu = &open_gpu;
  }
  return options;
}

}  // namespace tandem
