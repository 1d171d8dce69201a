// engine/tensors/torch_cuda.hpp — LibTorch's CUDA part: opened at run time, where it is wanted.
//
// A program links the CPU part alone. So it starts quickly on a machine without a GPU,
// builds against either wheel, and needs no CUDA headers of LibTorch's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "engine/device/gpu.hpp"

namespace tandem {

/// Why LibTorch cannot compute on a GPU here; empty: it can. The first call opens libraries,
/// seconds long; any thread.
[[nodiscard]] const std::string& why_torch_has_no_cuda();

/// The most bytes that ATen's allocator has taken of that device so far, free blocks included; 0
/// for the CPU. Any thread.
[[nodiscard]] std::size_t held_by_aten(at::Device device);

/// The device of the tensors that go with it; null: the CPU.
[[nodiscard]] at::Device device_of_tensors(const ComputeDevice* compute) noexcept;

/// Calls `work`; where ATen finds no memory for it, throws DeviceOutOfMemory with the sizes.
/// Compute lane.
void run_on_device(const std::function<void()>& work);

/// ATen on GPU `index`, with a stream of its own. Only where why_torch_has_no_cuda() is empty.
[[nodiscard]] std::shared_ptr<ComputeDevice> torch_cuda_device(int index);

}  // namespace tandem
