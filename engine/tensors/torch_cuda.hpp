// engine/tensors/torch_cuda.hpp — LibTorch's CUDA part, opened at run time if a run asks for it.
//
// A program links only the CPU part. So it starts quickly on a machine without a GPU, builds
// against either wheel, and does not need LibTorch's CUDA headers.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/device/gpu.hpp"

namespace tandem {

/// Returns why LibTorch cannot compute on a GPU here; empty if it can. The first call opens
/// libraries, which takes seconds. Any thread.
[[nodiscard]] const std::string& why_torch_has_no_cuda();

/// Returns the peak bytes that ATen's allocator has taken of that device, its free memory included;
/// 0 for the CPU. Any thread.
[[nodiscard]] std::size_t held_by_aten(at::Device device);

/// Returns the device of its tensors; for null the CPU.
[[nodiscard]] at::Device device_of_tensors(const ComputeDevice* compute) noexcept;

/// Calls `work`; throws DeviceOutOfMemory with the sizes if ATen finds no memory. Compute lane.
void run_on_device(const std::function<void()>& work);

/// ATen on GPU `index`, with a stream of its own. Only where why_torch_has_no_cuda() is empty.
[[nodiscard]] std::shared_ptr<ComputeDevice> torch_cuda_device(int index);

}  // namespace tandem
