#include "engine/distributed/communicator.hpp"

#include "actors/collectives/staged_backend.hpp"
#include "runtime/device/cuda_device.hpp"

namespace tandem {

std::unique_ptr<CollectiveBackend> Communicator::make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                                  CudaDevice& gpu,
                                                                  std::string_view /*uuid*/) {
  return std::make_unique<StagedBackend>(gpu, make_backend(loop, pool));
}

}  // namespace tandem
