// engine/tensors/device_choice.hpp — what --device means on this machine.
//
// A GPU is used where three things come together: a build with the CUDA parts, a GPU with its
// driver, and a LibTorch with CUDA. choose_device() is pure; DeviceFacts::of_machine() looks.
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

  /// Loads LibTorch's CUDA part only where the others are there.
  static DeviceFacts of_machine();
};

/// The reason that keeps this machine from --device cuda, in words; empty: there is none.
[[nodiscard]] std::string why_no_cuda(const DeviceFacts& facts);

/// "auto": cuda where it can be used, else cpu. Throws user_error for "cuda" where it cannot.
[[nodiscard]] DeviceKind choose_device(std::string_view asked, const DeviceFacts& facts);
/// The device for this machine; looks for GPUs only where the answer depends on them.
[[nodiscard]] DeviceKind choose_device(std::string_view asked);

/// This machine's: GPU number local_rank, modulo how many there are. Throws user_error where one
/// cannot be used.
[[nodiscard]] std::shared_ptr<Gpu> open_gpu(int local_rank);

}  // namespace tandem
