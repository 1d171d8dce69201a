// engine/device/gpu.hpp — a rank's GPU: the driver's calls, and ATen on the same device and stream.
//
// ATen's kernels go to one stream, which the rank's CudaDevice uses, too: so the loop orders copies
// and collectives against them by events, and no thread waits for the device. Our own kernels and
// the driver's calls are reached through tables of functions. Nothing here needs CUDA's or
// LibTorch's headers: LibTorch's CUDA part is opened when a run asks for a GPU (open_gpu(),
// engine/tensors/device_choice.hpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/gpu/sum_kernels.hpp"
#include "actors/gpu/update_kernels.hpp"
#include "runtime/device/cuda_api.hpp"

namespace tandem {

/// Where ATen computes. Tests have one whose tensors lie in host memory and whose stream is a
/// fake's.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  /// The number of the GPU on which the tensors of units, batches and activations lie; nullopt:
  /// they lie in host memory.
  [[nodiscard]] virtual std::optional<int> gpu_of_tensors() const = 0;
  /// The stream that ATen's work goes to, as the driver knows it. It lives as long as the process.
  [[nodiscard]] virtual void* stream() const = 0;
  /// Compute lane, before all else: this thread's ATen goes to that device and stream from now on,
  /// permanently.
  virtual void prepare_thread() = 0;
  /// Compute lane: calls `work`, whose kernels go to the stream, at once or when the stream reaches
  /// it. So `work` must own what it uses. Throws DeviceOutOfMemory.
  virtual void queue(std::function<void()> work) = 0;
};

struct SimSpec;
struct UpdateKernel;

struct Gpu {
  const CudaApi* api = nullptr;
  int index = 0;     // of the GPUs that this process sees
  std::string name;  // "gpu 0 (NVIDIA H200)"
  std::string uuid;  // the same in every process that sees it
  int node = -1;     // the NUMA node near it; -1: unknown
  std::shared_ptr<ComputeDevice> compute;
  const UpdateKernels* updates = nullptr;  // of optimizers
  const SumKernels* sums = nullptr;        // of gradients
  /// Measures the speeds of compute, updates and copies, for the placement of a run with that
  /// update kernel. Throws DeviceError. No loop may run on the calling thread.
  std::function<SimSpec(const Gpu&, const UpdateKernel&)> measure;
};

/// Opens a rank's GPU by its number among the ranks of its host.
using OpenGpu = std::function<std::shared_ptr<Gpu>(int local_rank)>;

}  // namespace tandem
