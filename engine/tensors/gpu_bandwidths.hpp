// engine/tensors/gpu_bandwidths.hpp — a GPU's speeds of compute, updates and copies, measured at a
// run's start and stored in the file of bandwidths.hpp.
//
// Measures copies between pinned and device memory, updates by the run's kernel, and matmuls in the
// type of the weights; each alone on the device, the best of a few. Takes tenths of a second, once
// for each machine and kernel.
// Thread rule: no loop may run on the calling thread.
// Errors: DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "engine/device/gpu.hpp"
#include "engine/placement/bandwidths.hpp"
#include "engine/types/sim_spec.hpp"

namespace tandem {

/// The sizes of a measurement; smaller ones would end too soon to be timed.
struct GpuProbe {
  std::size_t copied_bytes = std::size_t{64} << 20;
  std::size_t updated_bytes = std::size_t{512} << 20;  // more than the device's cache keeps
  std::int64_t matmul_side = 8192;
};

/// Measures the GPU and returns its description.
[[nodiscard]] SimSpec measure_gpu(const Gpu& gpu, const UpdateKernel& kernel,
                                  const GpuProbe& probe = {});

/// Returns the description from `cache` (usually the user's file), or measures it.
[[nodiscard]] SimSpec gpu_spec(const Gpu& gpu, const UpdateKernel& kernel,
                               const BandwidthCache& cache, const GpuProbe& probe = {});

/// Returns [side, side] with values between -1 and 1 that differ, the same in each call: a matmul
/// to measure takes it, because a GPU multiplies equal values with less power, and so at a higher
/// clock than in training. Compute lane.
[[nodiscard]] at::Tensor mixed_operand(std::int64_t side, at::ScalarType type, at::Device device);

}  // namespace tandem
