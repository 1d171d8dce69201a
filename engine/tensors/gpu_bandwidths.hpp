// engine/tensors/gpu_bandwidths.hpp — how fast a GPU computes, updates and is reached: measured
// at a run's start, kept in the file of bandwidths.hpp.
//
// As the run will do it: copies between pinned memory and the device's, updates by the run's
// kernel, matmuls in the type of the weights; each alone on the device, the best of a few. Tenths
// of a second, once for each machine and kernel.
// Thread rule: no loop may run on the calling thread.
// Errors: DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device/gpu.hpp"
#include "engine/placement/bandwidths.hpp"
#include "engine/types/sim_spec.hpp"

namespace tandem {

/// The sizes of a measurement; less would be done before its beginning and end are noticed.
struct GpuProbe {
  std::size_t copied_bytes = std::size_t{64} << 20;
  std::size_t updated_bytes = std::size_t{512} << 20;  // more than the device's cache keeps
  std::int64_t matmul_side = 8192;
};

/// The GPU as a description; here and now.
[[nodiscard]] SimSpec measure_gpu(const Gpu& gpu, const UpdateKernel& kernel,
                                  const GpuProbe& probe = {});

/// The same through `cache`, the user's file as a rule.
[[nodiscard]] SimSpec gpu_spec(const Gpu& gpu, const UpdateKernel& kernel,
                               const BandwidthCache& cache, const GpuProbe& probe = {});

}  // namespace tandem
