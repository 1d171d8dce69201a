// engine/tensors/device_choice.hpp — chooses the device that --device means on this machine.
//
// A GPU needs three things: a build with CUDA, a GPU with its driver, and a LibTorch with CUDA.
// choose_device() is pure; DeviceFacts::of_machine() asks the machine.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "engine/device/gpu.hpp"
#include "engine/types/options.hpp"

namespace tandem {

struct DeviceFacts {
  bool built_with_cuda = false;
  std::size_t gpus = 0;          // that a driver shows us
  std::string torch_lacks_cuda;  // why LibTorch cannot use one; empty: it can

  /// Loads LibTorch's CUDA part only if the build and the driver support it.
  static DeviceFacts of_machine();
};

/// Returns the reason why this machine cannot use --device cuda; empty if it can.
[[nodiscard]] std::string why_no_cuda(const DeviceFacts& facts);

/// Returns cuda for "auto" if it can be used, else cpu. Throws user_error for "cuda" if it cannot
/// be used.
[[nodiscard]] DeviceKind choose_device(std::string_view asked, const DeviceFacts& facts);
/// Returns the device for this machine; looks for GPUs only if the answer depends on them.
[[nodiscard]] DeviceKind choose_device(std::string_view asked);

/// Opens this machine's GPU number local_rank, modulo the number of GPUs. Throws user_error if it
/// cannot be used.
[[nodiscard]] std::shared_ptr<Gpu> open_gpu(int local_rank);
/// Returns the options with open_gpu() where the device is kCuda and they name no other GPU: the
/// only place that chooses it.
[[nodiscard]] EngineOptions with_gpu(EngineOptions options);

}  // namespace tandem
